//! Numbered records as syslog messages: the header in front of the text, and the framing.
//!
//! ```text
//! rfc3164   <13>Nov 21 06:40:31 hammer-0001 bench[4242]: TEXT
//! rfc5424   <13>1 2026-11-21T06:40:31.123456Z hammer-0001 bench 4242 ID47 [gen@32473 flow="0001"] TEXT
//! lines     MESSAGE LF
//! octets    MSG-LEN SP MESSAGE                 (RFC 6587)
//! ```
//!
//! The number after `hammer-` is that of the flow. The time of a record is the start of the run plus a microsecond for each earlier
//! record of the flow. With rfc5424, the receiver therefore sees a new time in every message; rfc3164 shows only seconds.

/// The format of a message's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// The older format: no year, no fraction of a second
    #[default]
    Rfc3164,
    /// The newer format, with structured data
    Rfc5424,
}

/// How messages are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Syslog {
    /// The header.
    pub form: Form,
    /// Each message is preceded by its length instead of followed by a newline.
    pub octets: bool,
    /// Each message is a datagram, without a length and without a newline.
    pub datagrams: bool,
}

/// The bytes before a record's text (`head`) and after it (`tail`), and the offset of the time in `head`.
pub struct Frame {
    pub head: Vec<u8>,
    pub tail: &'static [u8],
    pub time_at: usize,
}

/// Formats the times that are patched into messages. Caches the text of the most recent second.
pub struct Stamp {
    form: Form,
    seconds: u64,
    text: Vec<u8>,
}

impl Syslog {
    /// The header and the trailer for texts of `size` bytes of a flow.
    pub fn frame(self, flow: u16, size: usize) -> Frame {
        let (before, behind) = match self.form {
            Form::Rfc3164 => ("<13>", format!(" hammer-{flow:04x} bench[4242]: ")),
            Form::Rfc5424 => (
                "<13>1 ",
                format!(" hammer-{flow:04x} bench 4242 ID47 [gen@32473 flow=\"{flow:04x}\"] "),
            ),
        };
        let time = Stamp::new(self.form).at(0, 0).to_vec();
        let message = before.len() + time.len() + behind.len() + size;
        let count = match self.octets && !self.datagrams {
            true => format!("{message} "),
            false => String::new(),
        };
        let head = [
            count.as_bytes(),
            before.as_bytes(),
            &time,
            behind.as_bytes(),
        ]
        .concat();
        Frame {
            head,
            tail: if self.octets || self.datagrams {
                b""
            } else {
                b"\n"
            },
            time_at: count.len() + before.len(),
        }
    }
}

impl Stamp {
    /// A stamp that has no second cached yet.
    pub fn new(form: Form) -> Self {
        Self {
            form,
            seconds: u64::MAX,
            text: Vec::new(),
        }
    }

    /// Returns the text of a time in UTC.
    pub fn at(&mut self, seconds: u64, micros: u32) -> &[u8] {
        if self.seconds != seconds {
            self.seconds = seconds;
            self.text = whole(self.form, seconds).into_bytes();
        }
        if self.form == Form::Rfc5424 {
            let (mut rest, end) = (micros, self.text.len() - 1);
            for digit in self.text[end - 6..end].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        &self.text
    }
}

fn whole(form: Form, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    match form {
        Form::Rfc3164 => {
            let name = MONTHS[month as usize - 1];
            format!("{name} {day:2} {hour:02}:{minute:02}:{second:02}")
        }
        Form::Rfc5424 => {
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000000Z")
        }
    }
}

/// Returns the year, month and day of a day that is counted from 1970. A loop over years and months is fast enough, because it runs
/// only when the second changes.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_format_of_their_rfc() {
        let text = |form, seconds, micros| {
            String::from_utf8(Stamp::new(form).at(seconds, micros).to_vec()).unwrap()
        };
        assert_eq!(text(Form::Rfc3164, 1_795_243_231, 5), "Nov 21 06:40:31");
        assert_eq!(text(Form::Rfc3164, 1_709_251_199, 5), "Feb 29 23:59:59");
        assert_eq!(
            text(Form::Rfc5424, 1_795_243_231, 5),
            "2026-11-21T06:40:31.000005Z"
        );
    }

    #[test]
    fn the_octet_count_is_the_length_of_the_message() {
        let syslog = Syslog {
            octets: true,
            ..Syslog::default()
        };
        let frame = syslog.frame(1, 10);
        let head = String::from_utf8(frame.head).unwrap();
        assert_eq!(head, "55 <13>Jan  1 00:00:00 hammer-0001 bench[4242]: ");
        assert_eq!(head.len() - 3 + 10, 55);
        assert_eq!((frame.tail, frame.time_at), (&b""[..], 7));
    }
}
