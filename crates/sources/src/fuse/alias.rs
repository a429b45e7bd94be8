//! Further node numbers (aliases) of a file whose writes wait.
//!
//! While a write is not answered, the kernel holds the lock of the node that it goes to. A program that renames, removes or truncates
//! the file by its name, or changes its attributes, waits for this lock in the kernel. For a rename or a removal, the kernel holds the
//! lock of the directory meanwhile, so every other program that lists or changes the directory hangs, too, and cannot be killed.
//!
//! So a lookup of such a file returns an alias: the number of the same node with another top byte. To the kernel it is another file,
//! with a separate lock. To the source it is the same node: [`node_of`] removes the alias from every request. The names of files
//! are never cached by the kernel, so it looks a file up before each of these operations.

/// The aliases of a node differ in the bits from this one on. Nodes are numbered from 1, and never reach it.
const SHIFT: u32 = 56;
/// The number of aliases of a node, including the node itself.
const ALIASES: u64 = 256;

/// The node that a request of the kernel is about.
pub(super) fn node_of(number: u64) -> u64 {
    number & ((1 << SHIFT) - 1)
}

/// The first number of a node that is not in use: the number of the node itself, or an alias.
pub(super) fn first_free(node: u64, is_used: impl Fn(u64) -> bool) -> u64 {
    let mut numbers = (0..ALIASES).map(|alias| node | alias << SHIFT);
    numbers.find(|number| !is_used(*number)).unwrap_or(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_several_numbers() {
        assert_eq!(first_free(20, |_| false), 20);
        let alias = first_free(20, |number| number == 20);
        assert_ne!(alias, 20);
        let other = first_free(20, |number| [20, alias].contains(&number));
        assert!(![20, alias].contains(&other));
        for number in [20, alias, other] {
            assert_eq!(node_of(number), 20);
        }
        assert_eq!(first_free(20, |_| true), 20);
    }
}
