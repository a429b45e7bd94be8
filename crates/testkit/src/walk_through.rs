//! Checks that the code in CONTRIBUTING.md is compiled and tested code of the crates.

/// Asserts that each Rust block under `heading` of the Markdown text `contributing` is in `code` (white space is ignored), and that
/// there are at least `least` such blocks. Skips the blocks that begin with one of `outside`, which show lines of other files. A block
/// may end with `..`, which stands for lines that the block leaves out.
///
/// # Panics
/// If a block is not in the code, or there are too few blocks.
pub fn assert_walk_through(
    contributing: &str,
    heading: &str,
    code: &str,
    outside: &[&str],
    least: usize,
) {
    let here = squeezed(code);
    let section = contributing.split_once(&format!("{heading}\n"));
    let (_, section) = section.unwrap_or_else(|| panic!("no section {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```rust\n").skip(1);
    let blocks = blocks.map(|block| squeezed(block.split("```").next().unwrap_or_default()));
    let is_inside = |block: &String| outside.iter().all(|start| !block.starts_with(start));
    let blocks: Vec<_> = blocks.filter(is_inside).collect();
    assert!(blocks.len() >= least, "{heading} lost its code");
    for block in &blocks {
        let block = block.strip_suffix("..").unwrap_or(block);
        assert!(here.contains(block), "{heading}: not in the code: {block}");
    }
}

/// The text without white space.
fn squeezed(code: &str) -> String {
    code.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_differs_from_the_code_is_found() {
        let text = "## Add\n```rust\nmod a;\n```\n```rust\nfn a() {\n..\n```\n## Next\n```rust\nfn b()\n```\n";
        assert_walk_through(text, "## Add", "fn a() { }", &["moda"], 1);
        let differs = || assert_walk_through(text, "## Add", "fn c() { }", &["moda"], 1);
        assert!(std::panic::catch_unwind(differs).is_err());
        let lost = || assert_walk_through(text, "## Add", "fn a() { }", &["moda"], 2);
        assert!(std::panic::catch_unwind(lost).is_err());
    }
}
