//! The terminal: its alternate screen, its keys, its size. Dropping a [`Screen`] restores the state of the terminal.

use std::io::{self, Read, Write, stdin, stdout};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::table::Size;
use crate::visible::visible;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Ends the program.
    End,
    /// Scrolls up.
    Up,
    /// Scrolls down.
    Down,
    /// Anything else.
    Other,
}

/// The terminal while it shows the table.
pub struct Screen {
    /// The modes of the terminal before it was changed.
    before: Termios,
    keys: mpsc::Receiver<Key>,
    resize: Signal,
    term: Signal,
    hup: Signal,
}

impl Screen {
    /// Switches to the alternate screen, hides the cursor, and reads each key as soon as it is pressed.
    pub fn open() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        let screen = Self {
            before,
            keys: keys(),
            resize: signal(SignalKind::window_change())?,
            term: signal(SignalKind::terminate())?,
            hup: signal(SignalKind::hangup())?,
        };
        tcsetattr(stdin(), OptionalActions::Now, &modes)?;
        let mut out = stdout();
        out.write_all(b"\x1b[?1049h\x1b[?25l")?;
        out.flush()?;
        Ok(screen)
    }

    /// The size of the terminal.
    pub fn size(&self) -> Size {
        let size = tcgetwinsize(stdout());
        size.map_or(Size::SMALL, |size| Size {
            columns: usize::from(size.ws_col).max(1),
            rows: usize::from(size.ws_row).max(1),
        })
    }

    /// Shows lines, cut at the width of the terminal. A line that begins with the bell character is an error. A line that begins with a tab
    /// is a heading.
    pub fn draw(&mut self, lines: &[String], size: Size) -> io::Result<()> {
        let mut out = String::from("\x1b[H");
        for (at, line) in lines.iter().take(size.rows).enumerate() {
            if at > 0 {
                out.push_str("\r\n");
            }
            let (style, line) = match line.as_bytes().first() {
                Some(b'\x07') => ("\x1b[31m", &line[1..]),
                Some(b'\t') => ("\x1b[7m", &line[1..]),
                _ => ("", &**line),
            };
            let shown: String = visible(line).chars().take(size.columns).collect();
            out.push_str(style);
            out.push_str(&shown);
            out.push_str(if style.is_empty() {
                "\x1b[K"
            } else {
                "\x1b[0m\x1b[K"
            });
        }
        out.push_str("\x1b[J");
        let mut terminal = stdout();
        terminal.write_all(out.as_bytes())?;
        terminal.flush()
    }

    /// Returns the next key. A signal that ends the program is [`Key::End`], and a change of the size is [`Key::Other`].
    pub async fn key(&mut self) -> Key {
        tokio::select! {
            key = self.keys.recv() => key.unwrap_or(Key::End),
            _ = self.resize.recv() => Key::Other,
            _ = self.term.recv() => Key::End,
            _ = self.hup.recv() => Key::End,
        }
    }
}

/// Reads keys on a thread that ends with the program.
fn keys() -> mpsc::Receiver<Key> {
    let (sender, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut bytes = [0; 16];
        // In the mode that [`Screen::open`] sets, a read returns as soon as a byte is available.
        while let Ok(count) = stdin().read(&mut bytes) {
            let mut rest = &bytes[..count];
            loop {
                let (key, behind) = key(rest);
                if sender.blocking_send(key).is_err() || count == 0 {
                    return;
                }
                if behind.is_empty() {
                    break;
                }
                rest = behind;
            }
        }
    });
    keys
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = stdout();
        // If the terminal is gone, nothing needs to be restored.
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = out.flush();
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// The key at the beginning of `bytes`, and the remaining bytes. Several keys may arrive in one read.
fn key(bytes: &[u8]) -> (Key, &[u8]) {
    match bytes {
        [] => (Key::End, bytes),
        [b'q' | b'Q' | 3 | 4, rest @ ..] => (Key::End, rest),
        [b'k', rest @ ..] | [0x1b, b'[' | b'O', b'A', rest @ ..] => (Key::Up, rest),
        [b'j', rest @ ..] | [0x1b, b'[' | b'O', b'B', rest @ ..] => (Key::Down, rest),
        [0x1b, b'[' | b'O', rest @ ..] => {
            // An escape sequence ends with a letter or `~`.
            let end = rest.iter().position(|byte| (0x40..0x7f).contains(byte));
            (Key::Other, end.map_or(&[][..], |end| &rest[end + 1..]))
        }
        [_, rest @ ..] => (Key::Other, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_recognized_by_their_bytes() {
        for (bytes, wanted) in [
            (&b"q"[..], Key::End),
            (b"\x03", Key::End),
            (b"", Key::End),
            (b"\x1b[A", Key::Up),
            (b"j", Key::Down),
            (b"\x1b[5~", Key::Other),
        ] {
            assert_eq!(key(bytes), (wanted, &[][..]));
        }
    }

    #[test]
    fn several_keys_in_one_read_are_all_recognized() {
        let mut bytes = &b"\x1b[B\x1b[6~jx\x1bOAq"[..];
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let (key, rest) = key(bytes);
            keys.push(key);
            bytes = rest;
        }
        use Key::{Down, End, Other, Up};
        assert_eq!(keys, [Down, Other, Down, Other, Up, End]);
    }
}
