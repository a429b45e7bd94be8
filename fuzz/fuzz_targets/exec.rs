//! Fuzzes the processor `exec` with any bytes as the output of its program. The answers do not depend on how the bytes are cut into
//! pieces, and their records are valid entries. The first byte chooses the format and the size of the pieces.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_processors::fuzzing::read_answers;
use millstream_wire::msgpack::Walker;

fuzz_target!(|data: &[u8]| {
    let [how, output @ ..] = data else {
        return;
    };
    let is_msgpack = how & 0x80 != 0;
    let step = usize::from(how & 0x7f);
    let at_once = read_answers(is_msgpack, output, output.len());
    assert_eq!(read_answers(is_msgpack, output, step), at_once);
    let (entries, answers, _) = at_once;
    // Each answer has at least one byte: it is a line of JSON or a MessagePack value.
    assert!(answers <= output.len());
    let mut walker = Walker::new();
    walker.walk(&entries).expect("records are MessagePack");
    whole::assert_whole(&entries, walker.entries() as usize);
});
