//! The option `tag` of sources: a text in which `*` is replaced by a path (with dots instead of slashes), or a template of values
//! that all records of a batch share.

use std::borrow::Cow;

use jiff::tz::TimeZone;
use millstream_config::{Node, Problem};
use millstream_pipeline::layout::nearest_value;
use millstream_record::{Tag, Time, Values};
use millstream_wire::{
    record::{Record, TimedRecord},
    template::{Depends, Renderer, Shared, Template},
};

/// Values of this machine.
pub(crate) const LOCAL_VALUES: &[&str] = &["host"];
/// Values of a peer. Both are its IP address. For a unix socket, `host` is the name of this machine, and `peer` is `unix`.
pub(crate) const PEER_VALUES: &[&str] = &["host", "peer"];

/// How to make the tag of a batch.
#[derive(Clone, Debug)]
pub(crate) enum Tagging {
    /// The given tag: the name of the node, or the sender's tag.
    Given,
    /// A text in which `*` stands for the path with dots.
    Star(String),
    /// A template.
    Template(Template),
}

impl Tagging {
    /// Parses the option `tag`. `known` are the values that templates may use, in addition to `tag`.
    pub(crate) fn new(tag: Option<&str>, known: &[&str]) -> Result<Self, String> {
        let tag = match tag {
            None => return Ok(Self::Given),
            Some(tag) if !tag.contains(['{', '%']) => return Ok(Self::Star(tag.to_owned())),
            Some(tag) => tag,
        };
        batch_template(tag, known).map(Self::Template)
    }

    /// Does the same as [`Tagging::new`], and reports an error at the option `tag` of the node.
    pub(crate) fn of(tag: Option<&str>, known: &[&str], node: &Node) -> Result<Self, Problem> {
        Self::new(tag, known).map_err(|why| node.problem_at("tag", why))
    }

    /// The tag of a batch. If the option is not set, the tag is `given`. In a text, `path` replaces each `*`, if there is a path.
    /// If the batch lacks a value of the template (for example, because its file belongs to no pod), the tag is `given`.
    pub(crate) fn tag(&self, given: &str, path: Option<&str>, values: &Values) -> Tag {
        match (self, path) {
            (Self::Given, _) => Tag::from(given),
            (Self::Star(text), None) => Tag::from(&**text),
            (Self::Star(text), Some(path)) => {
                let dotted = path.trim_matches('/').replace('/', ".");
                Tag::from(&*text.replace('*', &dotted))
            }
            (Self::Template(template), _) => {
                let shared = Shared { tag: given, values };
                let record = TimedRecord {
                    time: Time::now(),
                    record: Record::None,
                    metadata: &[],
                };
                let mut tag = Vec::new();
                match Renderer::text(template, TimeZone::UTC).render(shared, record, &mut tag) {
                    Ok(_) => Tag::from(&*String::from_utf8_lossy(&tag)),
                    Err(_) => Tag::from(given),
                }
            }
        }
    }
}

/// A path as a value of records. Control characters are escaped: a file name with a newline could otherwise forge a line of an
/// output that shows `{path}`.
pub(crate) fn shown(path: &str) -> Cow<'_, str> {
    if !path.contains(char::is_control) {
        return path.into();
    }
    let mut out = String::with_capacity(path.len() + 8);
    for letter in path.chars() {
        match letter.is_control() {
            true => out.extend(letter.escape_default()),
            false => out.push(letter),
        }
    }
    out.into()
}

/// Parses a template that may use only `known`, the values that all records of a batch share.
pub(crate) fn batch_template(text: &str, known: &[&str]) -> Result<Template, String> {
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    if template.depends() > Depends::Batch {
        return Err("all records of a batch share it: it cannot name a field or time".to_owned());
    }
    let foreign = template.values().find(|(name, _)| !known.contains(name));
    let Some((name, _)) = foreign else {
        return Ok(template);
    };
    let meant = nearest_value(name, known);
    let meant = meant.map(|meant| format!("; did you mean `{meant}`?"));
    let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
    let known = known.join(", ");
    Err(format!(
        "there is no value `{name}` here: there are {known}{}",
        meant.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_control_characters_cannot_forge_a_line() {
        assert_eq!(
            shown("d/a\n2026 forged\u{1b}[2J"),
            "d/a\\n2026 forged\\u{1b}[2J"
        );
        assert!(matches!(shown("d/é.log"), Cow::Borrowed("d/é.log")));
    }

    #[test]
    fn a_tag_is_the_given_one_or_a_text_with_a_path_or_a_template() {
        let mut values = Values::new();
        values.set("host", "h");
        let tag = |text, path| {
            let tagging = Tagging::new(text, &["host", "peer"]).unwrap();
            tagging.tag("in", path, &values).as_str().to_owned()
        };
        assert_eq!(tag(None, Some("/a/b")), "in");
        assert_eq!(tag(Some("web.*"), Some("/a/b.log")), "web.a.b.log");
        assert_eq!(tag(Some("web.*"), None), "web.*");
        assert_eq!(tag(Some("{tag}.{host}"), None), "in.h");
        assert_eq!(tag(Some("x.{peer}"), None), "in", "there is no peer");
    }

    #[test]
    fn a_value_that_no_batch_has_is_refused() {
        let refused = |text| Tagging::new(Some(text), &["host", "peer"]).unwrap_err();
        assert!(refused("{.user}").contains("field"));
        assert!(refused("x-%Y").contains("time"));
        assert!(refused("{pod}").contains("`pod` here: there are `host`, `peer`"));
        assert!(refused("{hostname}").ends_with("did you mean `host`?"));
        assert!(Tagging::new(Some("{host"), &[]).is_err());
    }
}
