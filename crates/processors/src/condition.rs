//! The option `where` of processors: from the configuration to a matcher.

use std::sync::Arc;

use millstream_config::{Node, Problem};
use millstream_pipeline::tags::TagFilter;
use millstream_wire::condition::{Condition, Matcher, TagTest, Where};

/// Compiles conditions, of which the first that matches counts; each with the path of its option.
pub(crate) fn matcher<'a>(
    options: &Node,
    conditions: impl IntoIterator<Item = (String, &'a Where)>,
) -> Result<Matcher, Vec<Problem>> {
    let (mut maps, mut problems) = (Vec::new(), Vec::new());
    for (path, condition) in conditions {
        match map(condition) {
            Ok(map) => maps.push((path, map)),
            Err(why) => problems.push(options.problem_at(&path, why)),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // Patterns are the only part that can still be wrong, and one pattern at a time says which condition has it.
    for (path, map) in &maps {
        if let Err(why) = Matcher::new([*map], &tags) {
            problems.push(options.problem_at(path, why));
        }
    }
    let compiled = Matcher::new(maps.iter().map(|(_, map)| *map), &tags);
    compiled.map_err(|_| problems)
}

fn map(condition: &Where) -> Result<&Condition, String> {
    match condition {
        Where::Map(map) => match map.problem() {
            Some(why) => Err(why.to_owned()),
            None => Ok(map),
        },
        Where::Program(_) => {
            Err("a condition is a map, such as `{ .level: [error, fatal] }`".to_owned())
        }
    }
}

/// Patterns of tags are those of the option `tags`.
fn tags(patterns: &[String]) -> Result<TagTest, String> {
    let filter = TagFilter::new(patterns.iter().map(String::as_str))?;
    Ok(Arc::new(move |tag: &str| filter.takes(tag)))
}
