//! The processor `fields`: renames, sets, removes and keeps fields, and rewrites the tag.
//!
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! The changes are made on the undecoded bytes (`wire::edit`), in one pass over a batch.

use std::sync::Arc;

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
    edit::{Changes, Edit, Reject, Rename, Set},
    forward::TAG_BYTES_MAX,
    record::{FieldPath, records},
    template::{Depends, Renderer, Template},
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
    /// Fields with their new names: `{ .msg: .message }`. All are renamed at once, and a field that has the new name is replaced.
    rename: Rename,
    /// Fields with their values: constants, or templates such as `"{host}"`. A template that is a single field keeps its type. A value
    /// that is missing and has no default rejects the record.
    set: Set,
    /// Fields to remove.
    remove: Vec<FieldPath>,
    /// Fields to keep; all others are removed. Default: all.
    keep: Option<Vec<FieldPath>>,
    /// Template of the new tag, such as `"tenant.{.tenant}"`. It sees the changed record. Default: the tag stays.
    tag: Option<Template>,
    /// Time zone of strftime fields in templates. Default: the top-level `timezone`.
    timezone: Option<String>,
}

struct Fields {
    edit: Edit,
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
    if changes.is_empty() && config.tag.is_none() {
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
        edit,
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
            }),
        }))
    }
}

struct Editing {
    edit: Edit,
    rejects: Vec<Reject>,
    retag: Option<Retag>,
}

/// Computes the new tags of records.
struct Retag {
    renderer: Renderer,
    /// The tag of the current record.
    text: Vec<u8>,
    /// The head of the previous record.
    head: Option<Head>,
}

impl Task for Editing {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let (edit, rejects) = (&mut self.edit, &mut self.rejects);
        match &mut self.retag {
            None => {
                let apply =
                    |buffer: &mut Vec<u8>| Ok::<_, Failure>(edit.apply(batch, buffer, rejects));
                out.append(MAIN, None, apply)?;
            }
            Some(retag) => {
                let mut body = Vec::with_capacity(batch.len());
                let count = edit.apply(batch, &mut body, rejects);
                let changed = Batch {
                    encoding: Encoding::Packed,
                    body: Bytes::from(body),
                    count,
                    origins: Vec::new(),
                    ..batch.clone()
                };
                retag.send(&changed, out);
            }
        }
        for reject in self.rejects.drain(..) {
            out.reject(&batch.body[reject.range], &reject.reason.to_string());
        }
        Ok(())
    }
}

impl Retag {
    /// Sends each record of a changed batch under its new tag.
    fn send(&mut self, changed: &Batch, out: &mut Out<'_>) {
        self.head = None;
        let is_shared =
            self.renderer.depends() != Depends::Record && self.renderer.depends() != Depends::Time;
        for (range, timed) in records(changed) {
            let entry = &changed.body[range];
            if !is_shared || self.head.is_none() {
                self.text.clear();
                let rendered = self.renderer.render(changed.into(), timed, &mut self.text);
                if let Err(missing) = rendered {
                    out.reject(entry, &missing.to_string());
                    continue;
                }
                if let Err(why) = self.turn_to(changed) {
                    out.reject(entry, why);
                    continue;
                }
            }
            let _ = out.append(MAIN, self.head.as_ref(), |buffer| {
                buffer.extend_from_slice(entry);
                Ok::<_, Failure>(1)
            });
        }
    }

    /// Makes the head for the rendered tag, unless the previous record has the same.
    fn turn_to(&mut self, batch: &Batch) -> Result<(), &'static str> {
        let tag = std::str::from_utf8(&self.text).map_err(|_| "the new tag is not UTF-8")?;
        if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
            return Err("the new tag is empty or longer than 8192 bytes");
        }
        if self
            .head
            .as_ref()
            .is_none_or(|head| head.tag.as_str() != tag)
        {
            self.head = Some(Head {
                tag: tag.into(),
                values: batch.values.clone(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
