//! The processor that CONTRIBUTING.md walks through. It is compiled and tested here, so that the code in that
//! document is correct. It exists only in tests.

use std::{ops::Range, sync::Arc};

use millstream_config::{Node, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
};
use millstream_record::Batch;
use millstream_wire::{
    lines::write_entry,
    msgpack::{ReadError, Reader, entry_head, write_map_len, write_str},
    record::{Record, records},
};
use schemars::JsonSchema;
use serde::Deserialize;

pub const COMPONENT: Component = Component {
    name: "shorten",
    summary: "Cuts off the ends of long texts.",
    readme: include_str!("filter/README.md"),
    example: include_str!("filter/example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

/// The options of `shorten`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Size of the longest text that stays whole.
    text_max: Size,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let config: Config = options.read()?;
    if config.text_max.is_zero() {
        return Err(vec![
            options.problem_at("text_max", "it must be larger than 0"),
        ]);
    }
    Ok(Arc::new(config))
}

impl Processor for Config {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        let most = usize::try_from(self.text_max.as_bytes()).unwrap_or(usize::MAX);
        Ok(Box::new(Shorten { most }))
    }
}

struct Shorten {
    most: usize,
}

impl Task for Shorten {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        for (range, timed) in records(batch) {
            let written = match timed.record {
                Record::Line(line) if line.len() > self.most => out.append(MAIN, None, |buffer| {
                    write_entry(buffer, batch.received, shortened(line, self.most));
                    Ok(1)
                }),
                Record::Packed(map) if self.has_long(map) => out.append(MAIN, None, |buffer| {
                    self.write(&batch.body, range.clone(), buffer).map(|()| 1)
                }),
                _ => {
                    out.keep(MAIN, range.clone(), 1);
                    Ok(())
                }
            };
            if let Err(error) = written {
                out.reject(&batch.body[range], &error.to_string());
            }
        }
        Ok(())
    }
}

impl Shorten {
    /// Whether a text in the record is longer than `text_max`.
    fn has_long(&self, map: &[u8]) -> bool {
        let mut reader = Reader::new(map);
        let fields = reader.map_len().unwrap_or(0);
        (0..fields).any(|_| {
            let value = reader.skip().and_then(|()| reader.value());
            value.is_ok_and(|value| self.is_long(value))
        })
    }

    fn is_long(&self, value: &[u8]) -> bool {
        let text = Reader::new(value).bytes();
        text.is_ok_and(|text| text.len() > self.most)
    }

    /// Appends an entry. Its time and its short values are copied as bytes, and its long texts are written shortened.
    fn write(
        &self,
        body: &[u8],
        range: Range<usize>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let head = entry_head(body, range.start)?;
        buffer.extend_from_slice(&body[range.start..head.record]);
        let mut reader = Reader::at(body, head.record);
        let fields = reader.map_len()?;
        write_map_len(buffer, fields);
        for _ in 0..fields {
            buffer.extend_from_slice(reader.value()?);
            let value = reader.value()?;
            match self.is_long(value) {
                true => write_str(buffer, shortened(Reader::new(value).bytes()?, self.most)),
                false => buffer.extend_from_slice(value),
            }
        }
        Ok(())
    }
}

/// Returns at most `most` bytes of the start of a text that is longer than that. No character is divided.
fn shortened(text: &[u8], most: usize) -> &[u8] {
    let continues = |at: usize| text[at] & 0b1100_0000 == 0b1000_0000;
    let end = (0..=most).rev().find(|at| !continues(*at));
    &text[..end.unwrap_or(0)]
}

mod tests {
    use millstream_testkit::walk_through::assert_walk_through;

    use super::*;
    use crate::rig::{Rig, entries, lines, problems};

    #[test]
    fn long_texts_are_cut_between_characters_and_other_values_stay() {
        let mut rig = Rig::new(&COMPONENT, r#"{"text_max": "4B"}"#);
        let made = rig.run(&lines("t", "abcdef\nabcd\nabc\u{e9}\n"));
        let expected = [r#"{"message":"abcd"}"#, "abcd", r#"{"message":"abc"}"#];
        assert_eq!(made.lines(""), expected);
        let record = b"\x92\x01\x83\xa1n\x07\xa1s\xa4abcd\xa1t\xa5abcde".to_vec();
        let made = rig.run(&entries(record, 1));
        assert_eq!(made.lines(""), [r#"{"n":7,"s":"abcd","t":"abcd"}"#]);
        assert!(problems(&COMPONENT, r#"{"text_max": "0B"}"#)[0].contains("larger than 0"));
    }

    #[test]
    fn records_without_long_texts_are_not_copied() {
        let mut rig = Rig::new(&COMPONENT, r#"{"text_max": "4B"}"#);
        let batch = lines("t", "ab\ncd\n");
        let made = rig.run(&batch);
        assert_eq!(made.ports[""][0].body.as_ptr(), batch.body.as_ptr());
    }

    #[test]
    fn the_walk_through_of_contributing_is_this_file() {
        assert_walk_through(
            include_str!("../../../CONTRIBUTING.md"),
            "## Add a processor",
            include_str!("contributing.rs"),
            &["modshorten", "shorten::"],
            4,
        );
    }
}
