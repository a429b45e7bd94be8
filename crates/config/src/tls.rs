//! The top-level section `tls`, a map of names to blocks. A node that names a block gets a copy of it.
//!
//! So a component sees only blocks and never their names. A problem in a block is reported where the block is written.

use crate::names::{check, nearest};
use crate::node::{Key, Node, Value};
use crate::problem::Problem;

/// The name of the section, and of the option of a node.
pub(crate) const TLS: &str = "tls";

/// Replaces the names of blocks in the nodes by copies of the blocks.
pub(crate) fn put<'a>(
    section: Option<(Key, Node)>,
    nodes: impl Iterator<Item = &'a mut Node>,
    problems: &mut Vec<Problem>,
) {
    let (blocks, is_whole) = match section {
        Some((_, node)) => blocks(node, problems),
        None => (Vec::new(), true),
    };
    let mut used = vec![false; blocks.len()];
    for node in nodes {
        let Value::Map(options) = &mut node.value else {
            continue;
        };
        let Some(option) = options.get_mut(TLS) else {
            continue;
        };
        let Some(name) = option.as_text() else {
            continue;
        };
        match blocks.iter().position(|(key, _)| key.text == name) {
            Some(at) => {
                used[at] = true;
                *option = blocks[at].1.clone();
            }
            None => {
                if is_whole {
                    problems.push(unknown(name, option, &blocks));
                }
                option.value = Value::Invalid;
            }
        }
    }
    for ((key, _), _) in blocks.iter().zip(used).filter(|(_, used)| !used) {
        let message = format!("no node uses the `tls` called `{}`", key.text);
        problems.push(Problem::warning(&key.place, message));
    }
}

/// Returns the blocks with their names, and whether the section could be read. If the section could not be read, unknown names are not
/// reported.
fn blocks(node: Node, problems: &mut Vec<Problem>) -> (Vec<(Key, Node)>, bool) {
    let map = match node.value {
        Value::Map(map) => map,
        Value::Null => return (Vec::new(), true),
        Value::Invalid => return (Vec::new(), false),
        _ => {
            let message = format!(
                "`tls` must be a map of names to blocks, found {}",
                node.kind()
            );
            let help = "such as `tls: { mesh: { cert: FILE, key: FILE, ca: FILE } }`";
            problems.push(Problem::new(&node.place, message).help(help));
            return (Vec::new(), false);
        }
    };
    let mut blocks = map.entries;
    for (key, block) in &mut blocks {
        if let Err(why) = check(&key.text) {
            problems.push(Problem::new(&key.place, why));
        }
        if !matches!(block.value, Value::Map(_) | Value::Invalid) {
            let found = block.kind();
            let message = format!("the `tls` `{}` must be a block, found {found}", key.text);
            let help = "such as `{ cert: FILE, key: FILE, ca: FILE }`";
            problems.push(Problem::new(&block.place, message).help(help));
            block.value = Value::Invalid;
        }
    }
    (blocks, true)
}

fn unknown(name: &str, option: &Node, blocks: &[(Key, Node)]) -> Problem {
    let problem = Problem::new(&option.place, format!("there is no `tls` called `{name}`"));
    match nearest(name, blocks.iter().map(|(key, _)| key.text.as_str())) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem.help(format!(
            "define it at the top of the file: `tls: {{ {name}: {{ cert: FILE, key: FILE }} }}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sections::Tree;

    fn sections(yaml: &str) -> crate::Sections {
        let root = Node::parse("t.yaml", yaml).unwrap();
        Tree { root }.sections()
    }

    fn messages(yaml: &str) -> Vec<String> {
        let problems = sections(yaml).problems.0;
        let one = |p: &Problem| format!("{}:{} {}", p.place.line, p.place.column, p.message);
        problems.iter().map(one).collect()
    }

    #[test]
    fn a_node_gets_the_block_that_it_names_and_problems_point_into_the_block() {
        let all = sections(
            "tls:\n  mesh: { cert: a.pem }\nsources:\n  in: { type: forward, tls: mesh }\n  b: { type: forward, tls: true }",
        );
        assert_eq!(all.problems.0, []);
        let cert = all.nodes[0].options.find("tls.cert").unwrap();
        assert_eq!((cert.as_text(), cert.place.line), (Some("a.pem"), 2));
        let on = all.nodes[1].options.find("tls").unwrap();
        assert!(matches!(on.value, Value::Bool(true)));
    }

    #[test]
    fn unknown_names_and_unused_blocks_are_reported() {
        assert_eq!(
            messages("tls: { mesh: {} }\nsources: { in: { type: forward, tls: mash } }"),
            [
                "2:38 there is no `tls` called `mash`",
                "1:8 no node uses the `tls` called `mesh`"
            ]
        );
        assert_eq!(
            messages("tls: [1]\nsources: { in: { type: forward, tls: mash } }"),
            ["1:6 `tls` must be a map of names to blocks, found a list"]
        );
        assert_eq!(
            messages("tls: { a: 1 }\nsources: { in: { type: forward, tls: a } }"),
            ["1:11 the `tls` `a` must be a block, found a number"]
        );
    }
}
