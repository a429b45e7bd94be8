//! RELP (Reliable Event Logging Protocol) as rsyslog's omrelp uses it: frames, the rules of a session, answers.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Each frame is returned once, complete or in parts, in the order of the numbers. A violation of the protocol is reported
//! and ends the session. The caller decides when to answer: it must send the `rsp` for a message only once the message is
//! kept. Numbers begin at 1 in each session, so a repeated frame cannot be recognized. This module does no I/O and uses no
//! clock.
//!
//! ```text
//! frame    TXNR SP COMMAND SP DATALEN [SP DATA] LF    TXNR, DATALEN: 1 to 9 digits; COMMAND: 1 to 32 letters;
//!                                                     no space after DATALEN if it is 0
//! client   1 open N relp_version=0 LF relp_software=... LF commands=syslog
//! server   1 rsp N 200 OK LF relp_version=0 LF relp_software=... LF commands=syslog
//! client   2 syslog N <13>...            server   2 rsp 6 200 OK
//! client   9 close 0                     server   9 rsp 0, then 0 serverclose 0
//! ```

mod answer;
mod frame;

#[cfg(test)]
mod tests;

pub use answer::{Offers, accept, acknowledge, closed, refuse, serverclose};
pub use frame::{Command, Decoder, Refusal, Step};

/// The highest number of a frame; 1 follows it.
const NUMBER_MAX: u32 = 999_999_999;

/// The number after `number`.
pub fn after(number: u32) -> u32 {
    if number >= NUMBER_MAX { 1 } else { number + 1 }
}
