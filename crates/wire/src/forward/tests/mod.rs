//! A connection without a socket, and the result of reading it.

mod cases;
mod groups;
mod splits;

use millstream_record::Encoding;

use super::*;

const FRAME_BYTES_MAX: usize = 8 << 20;

/// An item that the connection has received.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Frame {
        tag: Vec<u8>,
        kind: &'static str,
        body: Vec<u8>,
        records: u32,
        misfits: u32,
        chunk: Option<Vec<u8>>,
    },
    Heartbeat,
    Stray,
    Misfit(Vec<u8>, Option<Vec<u8>>),
}

/// An announced payload.
struct Incoming {
    tag: Vec<u8>,
    encoding: Encoding,
    length: usize,
    bytes: Vec<u8>,
    check: Check,
}

/// A connection without a socket: reads `input` in pieces that end at `cuts`, as `sources/forward` does.
#[derive(Default)]
struct Connection {
    stash: Vec<u8>,
    payload: Option<Incoming>,
    seen: Vec<Seen>,
}

impl Connection {
    fn read(&mut self, decoder: &mut Decoder, mut piece: &[u8]) -> Result<(), Refusal> {
        loop {
            if let Some(incoming) = &mut self.payload {
                let taken = piece.len().min(incoming.length - incoming.bytes.len());
                incoming.bytes.extend_from_slice(&piece[..taken]);
                piece = &piece[taken..];
                let _ = incoming.check.feed(&incoming.bytes);
                if incoming.bytes.len() < incoming.length {
                    return Ok(());
                }
            }
            self.stash.extend_from_slice(piece);
            piece = &[];
            let stash = std::mem::take(&mut self.stash);
            let mut converted = Vec::new();
            let (consumed, step) = match decoder.next(&stash)? {
                (consumed, Step::Json) => {
                    let text = &stash[..consumed];
                    (consumed, decoder.convert(text, &mut converted)?)
                }
                next => next,
            };
            let mut rest = consumed;
            let done = match step {
                Step::More => true,
                Step::Json => unreachable!("it was converted"),
                Step::Heartbeat => self.push(Seen::Heartbeat),
                Step::Stray => self.push(Seen::Stray),
                Step::Misfit { value, chunk } => {
                    self.push(Seen::Misfit(value.to_vec(), chunk.map(<[u8]>::to_vec)))
                }
                Step::Frame(frame) => {
                    let seen = seen_frame(&frame);
                    self.push(seen)
                }
                Step::Payload(head) => {
                    let end = stash.len().min(consumed + head.length);
                    rest = end;
                    self.payload = Some(Incoming {
                        tag: head.tag.to_vec(),
                        encoding: head.encoding,
                        length: head.length,
                        bytes: stash[consumed..end].to_vec(),
                        check: Check::new(head.encoding),
                    });
                    false
                }
                Step::End(options) => {
                    let incoming = self.payload.take().unwrap();
                    self.push(Seen::Frame {
                        tag: incoming.tag,
                        kind: kind(incoming.encoding),
                        body: incoming.bytes,
                        records: incoming.check.records(),
                        misfits: incoming.check.misfits(),
                        chunk: options.chunk.map(<[u8]>::to_vec),
                    })
                }
            };
            self.stash = stash[rest..].to_vec();
            if done {
                return Ok(());
            }
        }
    }

    fn push(&mut self, seen: Seen) -> bool {
        self.seen.push(seen);
        false
    }
}

fn kind(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Packed => "packed",
        Encoding::Lines => "lines",
    }
}

fn seen_frame(frame: &Frame<'_>) -> Seen {
    let (kind, body, encoding) = match frame.form {
        Form::Message(_) => (
            "message",
            [&[0x92][..], frame.body].concat(),
            Encoding::Packed,
        ),
        Form::Forward(_) => ("forward", frame.body.to_vec(), Encoding::Packed),
        Form::Packed => ("packed", frame.body.to_vec(), Encoding::Packed),
        Form::Lines => ("lines", frame.body.to_vec(), Encoding::Lines),
    };
    let mut check = Check::new(encoding);
    let _ = check.feed(&body);
    Seen::Frame {
        tag: frame.tag.to_vec(),
        kind,
        body,
        records: check.records(),
        misfits: check.misfits(),
        chunk: frame.options.chunk.map(<[u8]>::to_vec),
    }
}

fn connection(input: &[u8], cuts: &[usize]) -> Result<(Vec<Seen>, bool), (Vec<Seen>, Refusal)> {
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    let mut connection = Connection::default();
    let mut from = 0;
    for &to in cuts.iter().chain([&input.len()]) {
        if let Err(refusal) = connection.read(&mut decoder, &input[from..to]) {
            return Err((connection.seen, refusal));
        }
        from = to;
    }
    let amid = decoder.is_amid(connection.stash.len());
    if !amid {
        assert_eq!(decoder.offset(), input.len() as u64);
    }
    Ok((connection.seen, amid))
}

fn whole(input: &[u8]) -> Vec<Seen> {
    let (seen, amid) = connection(input, &[]).expect("the input is sound");
    assert!(!amid, "the input ends with a frame");
    seen
}
