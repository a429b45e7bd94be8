//! Finds out which records brokers refuse permanently.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! A broker refuses a whole batch for one bad record (no key in a compacted topic, a time too far ahead). Kafka since 2.4 names the
//! bad records. If a broker does not name them, everything is sent again, each record in a separate batch. A refused batch then
//! identifies one bad record.

use millstream_kafka::{Error, Failed, Kind, ProducerOptions};

/// Whether brokers name the bad records of a batch, and whether the producer that follows a failure must send each record alone.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Brokers name the bad records of a batch.
    named: bool,
    /// Each record is sent in a separate batch.
    alone: bool,
}

impl Verdicts {
    /// Learns from failures. Returns the number and the reason of each record that brokers refuse permanently. The list is empty if
    /// the bad records are not known yet; each record must then be sent again in a separate batch. Returns `None` if the failures have
    /// another cause.
    pub(super) fn judge(&mut self, failed: &[Failed]) -> Option<Vec<(usize, String)>> {
        let of = |kind| move |failed: &&Failed| failed.error.kind == kind;
        self.named |= failed.iter().any(|failed| of(Kind::Neighbour)(&failed));
        let suspects = failed.iter().filter(of(Kind::Suspect)).count();
        // A suspect is a bad record, or a good record in the same batch as a bad one. A suspect is certainly bad if the broker names
        // bad records, if it was sent alone, or if there is only one suspect.
        let proven = self.named || self.alone || suspects == 1;
        let unfit = failed.iter().filter(of(Kind::Suspect));
        let unfit = unfit.filter(|failed| proven || failed.alone);
        let unfit: Vec<_> = unfit
            .map(|failed| (failed.number, reason(&failed.error)))
            .collect();
        self.alone |= unfit.is_empty() && suspects > 0;
        (suspects > 0).then_some(unfit)
    }

    /// Lets the next producer send records together again. Returns whether they were sent alone.
    pub(super) fn join(&mut self) -> bool {
        std::mem::take(&mut self.alone)
    }

    /// Sets the options of the next producer.
    pub(super) fn apply(&self, options: &mut ProducerOptions) {
        if self.alone {
            options.batch_records = 1;
        }
    }
}

/// Whether the content of a record caused the failure. Other causes are the broker, a missing permission, and the connection.
pub(super) fn is_verdict(error: &Error) -> bool {
    matches!(error.kind, Kind::Suspect | Kind::Neighbour)
}

fn reason(error: &Error) -> String {
    format!("Kafka refuses the record permanently: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kinds: &[Kind]) -> Vec<Failed> {
        let kinds = kinds.iter().enumerate();
        let failed = kinds.map(|(number, kind)| Failed {
            number,
            topic: "t".to_owned(),
            alone: false,
            error: Error::new(*kind, "no"),
        });
        failed.collect()
    }

    fn numbers(unfit: &[(usize, String)]) -> Vec<usize> {
        unfit.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn bad_records_are_distinguished_from_their_neighbours() {
        use Kind::{Again, Neighbour, Suspect};
        for (kinds, unfit) in [
            (&[Suspect, Neighbour, Suspect, Again][..], Some(&[0, 2][..])),
            (&[Neighbour, Suspect], Some(&[1])),
            // Two batches, each with one bad record.
            (&[Neighbour, Suspect, Suspect, Neighbour], Some(&[1, 2])),
            (&[Suspect], Some(&[0])),
            // Either the broker does not name bad records, or every record of the batch is bad.
            (&[Suspect, Suspect, Again], Some(&[])),
            (&[Again], None),
        ] {
            let judged = Verdicts::default().judge(&failed(kinds));
            let judged = judged.as_deref().map(numbers);
            assert_eq!(judged.as_deref(), unfit, "{kinds:?}");
        }
    }

    #[test]
    fn a_record_that_is_refused_alone_is_bad() {
        use Kind::{Again, Suspect};
        let mut verdicts = Verdicts::default();
        assert_eq!(verdicts.judge(&failed(&[Suspect, Suspect])), Some(vec![]));
        let unfit = verdicts.judge(&failed(&[Again, Suspect, Suspect]));
        assert_eq!(numbers(&unfit.unwrap()), [1, 2]);
        assert!(verdicts.join());
        assert_eq!(verdicts.judge(&failed(&[Suspect, Suspect])), Some(vec![]));
    }
}
