//! The encoded context of a log record (its resource and scope), divided into its parts.

/// The context of a record is its resource and its scope. The encoded context begins with a header of this many bytes:
///
/// ```text
/// 0   u32, little endian: length of the resource
/// 4   u32, little endian: length of the scope
/// 8   u32, little endian: length of the schema URL of the resource
/// 12  the resource, the scope, the schema URL of the resource, the schema URL of the scope
/// ```
pub(super) const HEAD_BYTES: usize = 12;

/// The parts of an encoded context.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around<'a> {
    pub(super) resource: &'a [u8],
    pub(super) scope: &'a [u8],
    pub(super) resource_schema: &'a [u8],
    pub(super) scope_schema: &'a [u8],
}

impl<'a> Around<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES).unwrap_or_default();
        let lengths = head.chunks_exact(4);
        let mut lengths = lengths.map(|length| length.try_into().map_or(0, u32::from_le_bytes));
        let mut part = || {
            let length = lengths.next().unwrap_or(0) as usize;
            let (part, behind) = rest.split_at_checked(length).unwrap_or_default();
            rest = behind;
            part
        };
        let (resource, scope, resource_schema) = (part(), part(), part());
        Self {
            resource,
            scope,
            resource_schema,
            scope_schema: rest,
        }
    }
}
