//! The processor `fields`: renames, sets, removes and keeps fields, and rewrites the tag.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! The changes are made on the undecoded bytes (`wire::edit`), in one pass over a batch. If all records get the same new tag and no
//! other change, nothing is copied.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use jiff::tz::TimeZone;
use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::{Head, Out},
    processor::{MAIN, Processor, Task},
};
use millstream_record::{Batch, Encoding};
use millstream_wire::{
    edit::{Changes, Edit, Reason, Reject, Rename, Set},
    forward::TAG_BYTES_MAX,
    record::{FieldPath, records},
    template::{Depends, Missing, Renderer, Template},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::zone;

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "fields",
    summary: "Renames, sets, removes and keeps fields, and rewrites the tag.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

/// The options of `fields`. The changes are made in the order of this list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Fields with their new names: `{ .msg: .message }`. All are renamed at the same time. A field that already has the new name
    /// is replaced.
    rename: Rename,
    /// Fields with their values: constants, or templates such as `"{host}"`. If a template consists of a single field, the new
    /// field has the type of that field. A record is rejected if it lacks a value that a template needs and for which the template
    /// has no default.
    set: Set,
    /// Fields to remove.
    remove: Vec<FieldPath>,
    /// Fields to keep; all others are removed. Default: all.
    keep: Option<Vec<FieldPath>>,
    /// Template of the new tag, such as `"tenant.{.tenant}"`. It is rendered from the changed record. Default: the tag stays the
    /// same.
    tag: Option<Template>,
    /// Time zone of strftime fields in templates. Default: the top-level `timezone`.
    timezone: Option<String>,
}

struct Fields {
    /// `None` if only the tag changes.
    edit: Option<Edit>,
    tag: Option<Template>,
    zone: TimeZone,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let config: Config = options.read()?;
    let name = config.timezone.as_deref();
    let zone = zone::find(options, "timezone", name).map_err(|problem| vec![problem])?;
    let changes = Changes {
        rename: config.rename,
        set: config.set,
        remove: config.remove,
        keep: config.keep,
    };
    let is_empty = changes.is_empty();
    if is_empty && config.tag.is_none() {
        let problem = options.problem_at("", "it changes nothing");
        return Err(vec![
            problem.help("set one of `rename`, `set`, `remove`, `keep` and `tag`"),
        ]);
    }
    let edit = changes.compile(&zone).map_err(|error| {
        vec![
            options
                .problem_at(error.option, error.message)
                .help(error.help),
        ]
    })?;
    Ok(Arc::new(Fields {
        edit: (!is_empty).then_some(edit),
        tag: config.tag,
        zone,
    }))
}

impl Processor for Fields {
    fn changes_tags(&self) -> bool {
        self.tag.is_some()
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        let renderer = |tag| Renderer::text(tag, self.zone.clone());
        Ok(Box::new(Editing {
            edit: self.edit.clone(),
            rejects: Vec::new(),
            retag: self.tag.as_ref().map(|tag| Retag {
                renderer: renderer(tag),
                text: Vec::new(),
                head: None,
                body: Vec::new(),
            }),
        }))
    }
}

struct Editing {
    edit: Option<Edit>,
    rejects: Vec<Reject>,
    retag: Option<Retag>,
}

/// Computes the new tags of records.
struct Retag {
    renderer: Renderer,
    /// The tag of the current record.
    text: Vec<u8>,
    /// The head (tag and values) of the previous record.
    head: Option<Head>,
    /// A buffer for changed records. It is reused, because the first access to fresh memory is slow.
    body: Vec<u8>,
}

/// The largest buffer that a task holds between two batches.
const BODY_BYTES_MAX: usize = 4 << 20;

impl Task for Editing {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let rejects = &mut self.rejects;
        match (&mut self.edit, &mut self.retag) {
            (Some(edit), None) => {
                let left = out.left_bytes();
                let applied = out.append(MAIN, None, |buffer| {
                    let before = buffer.len();
                    let count = edit.apply(batch, buffer, rejects);
                    fits(buffer.len() - before, left).map(|()| count)
                });
                if let Err(why) = applied {
                    reject_all(batch, rejects, out, &why);
                }
            }
            (Some(edit), Some(retag)) => retag.send_changed(edit, batch, rejects, out),
            (None, Some(retag)) => {
                let originals = records(batch).map(|(range, _)| &batch.body[range]);
                retag.send(batch, originals, out, |out, head, range, count| {
                    out.keep_as(MAIN, head, range, count);
                });
            }
            (None, None) => out.pass(MAIN),
        }
        for reject in self.rejects.drain(..) {
            out.reject(&batch.body[reject.range], &reject.reason.to_string());
        }
        Ok(())
    }
}

/// Checks that changed records of `bytes` bytes do not exceed the bytes `left` for a batch. [`Edit::apply`] has the same limit, but may
/// have got a part of the batch.
fn fits(bytes: usize, left: usize) -> Result<(), Reason> {
    match bytes > left {
        true => Err(Reason::Grown(left)),
        false => Ok(()),
    }
}

/// Rejects all records of a batch.
fn reject_all(batch: &Batch, rejects: &mut Vec<Reject>, out: &mut Out<'_>, why: &Reason) {
    rejects.clear();
    for (range, _) in records(batch) {
        out.reject(&batch.body[range], &why.to_string());
    }
}

impl Retag {
    /// Changes the records of a batch and sends each under its new tag.
    fn send_changed(
        &mut self,
        edit: &mut Edit,
        batch: &Batch,
        rejects: &mut Vec<Reject>,
        out: &mut Out<'_>,
    ) {
        let mut body = std::mem::take(&mut self.body);
        let count = edit.apply(batch, &mut body, rejects);
        if let Err(why) = fits(body.len(), out.left_bytes()) {
            return reject_all(batch, rejects, out, &why);
        }
        let changed = Batch {
            encoding: Encoding::Packed,
            body: Bytes::from(body),
            count,
            origins: Vec::new(),
            ..batch.clone()
        };
        let mut refused = rejects.iter().map(|reject| reject.range.start).peekable();
        let originals = records(batch)
            .filter(|(range, _)| refused.next_if_eq(&range.start).is_none())
            .map(|(range, _)| &batch.body[range]);
        self.send(&changed, originals, out, |out, head, range, count| {
            let entries = &changed.body[range];
            let _ = out.append(MAIN, Some(head), |buffer| {
                buffer.extend_from_slice(entries);
                Ok::<_, Failure>(count)
            });
        });
        let mut body = Vec::from(changed.body);
        if body.capacity() <= BODY_BYTES_MAX {
            body.clear();
            self.body = body;
        }
    }

    /// Renders the new tags of the records of a batch. Calls `send` with each new head, and with the range and the number of the
    /// records that get this head. A record whose tag cannot be used is rejected as it came: `originals` has the bytes of each record
    /// before the changes.
    fn send<'a>(
        &mut self,
        batch: &Batch,
        mut originals: impl Iterator<Item = &'a [u8]>,
        out: &mut Out<'_>,
        mut send: impl FnMut(&mut Out<'_>, &Head, Range<usize>, u32),
    ) {
        self.head = None;
        if self.renderer.depends() <= Depends::Batch {
            self.text.clear();
            let rendered = self.renderer.render_batch(batch, &mut self.text);
            match self.turn_to(batch, rendered) {
                Ok(head) => send(out, head, 0..batch.len(), batch.count),
                Err(why) => originals.for_each(|record| out.reject(record, &why)),
            }
            return;
        }
        // The number of records that were taken from `originals`.
        let mut taken = 0;
        for (at, (range, timed)) in records(batch).enumerate() {
            self.text.clear();
            let rendered = self.renderer.render(batch.into(), timed, &mut self.text);
            match self.turn_to(batch, rendered) {
                Ok(head) => send(out, head, range, 1),
                Err(why) => {
                    if let Some(record) = originals.nth(at - taken) {
                        out.reject(record, &why);
                    }
                    taken = at + 1;
                }
            }
        }
    }

    /// Returns the head with the rendered tag. The error is the reason why the tag cannot be used.
    fn turn_to(&mut self, batch: &Batch, rendered: Result<(), Missing>) -> Result<&Head, String> {
        rendered.map_err(|missing| missing.to_string())?;
        let tag = std::str::from_utf8(&self.text).map_err(|_| "the new tag is not UTF-8")?;
        if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
            return Err("the new tag is empty or longer than 8192 bytes".to_owned());
        }
        let known = self.head.take().filter(|head| head.tag.as_str() == tag);
        Ok(self.head.insert(known.unwrap_or_else(|| Head {
            tag: tag.into(),
            values: batch.values.clone(),
        })))
    }
}

#[cfg(test)]
mod tests;
