//! Records that a destination never accepts, and why.

use std::{borrow::Cow, collections::HashMap, ops::Range, sync::Arc};

use millstream_record::Batch;
use millstream_wire::{format::Reject, record::records};

/// The byte range of a record in its batch's body, and the reason why it is rejected. Records may share a reason, which can be as long as a
/// path.
pub(crate) type Refused = (Range<usize>, Arc<str>);

/// A record that cannot be encoded.
pub(crate) fn unencoded(reject: Reject) -> Refused {
    (reject.range, reject.reason.to_string().into())
}

/// Adds the records in `range` of a batch, which are refused for the same reason.
pub(crate) fn refuse(refused: &mut Vec<Refused>, batch: &Batch, range: Range<usize>, why: &str) {
    let why: Arc<str> = why.into();
    let start = range.start;
    let part = Batch {
        body: batch.body.slice(range),
        ..batch.clone()
    };
    let places = records(&part).map(|(place, _)| start + place.start..start + place.end);
    refused.extend(places.map(|place| (place, why.clone())));
}

/// Maximum number of groups. Each group leaves and is synced separately, and the reason may hold a part of the record. So records
/// that all have different reasons would cost a sync each.
const GROUPS_MAX: usize = 16;

/// Groups the records of a batch by reason. The groups are in the order of their first records, and hold the bytes of each record.
pub(crate) fn by_reason<'a>(
    batch: &'a Batch,
    refused: &'a [Refused],
) -> Vec<(Cow<'a, str>, Vec<&'a [u8]>)> {
    group(refused.iter().filter_map(|(range, reason)| {
        let record = batch.body.get(range.clone())?;
        Some((&**reason, record))
    }))
}

/// Groups items by reason. The last of [`GROUPS_MAX`] groups holds the items with all further reasons.
pub(crate) fn group<'a, T>(
    items: impl Iterator<Item = (&'a str, T)>,
) -> Vec<(Cow<'a, str>, Vec<T>)> {
    let mut groups: Vec<(Cow<'a, str>, Vec<T>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut is_mixed = false;
    for (reason, item) in items {
        let place = match places.get(reason) {
            Some(place) => *place,
            None if groups.len() < GROUPS_MAX => {
                places.insert(reason, groups.len());
                groups.push((reason.into(), Vec::new()));
                groups.len() - 1
            }
            None => {
                is_mixed = true;
                GROUPS_MAX - 1
            }
        };
        if let Some((_, items)) = groups.get_mut(place) {
            items.push(item);
        }
    }
    if let (true, Some((reason, _))) = (is_mixed, groups.last_mut()) {
        *reason =
            format!("one of more than {GROUPS_MAX} reasons in its batch, such as: {reason}").into();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::lines;

    #[test]
    fn each_record_of_a_refused_run_is_refused_and_they_share_the_reason() {
        let mut refused = Vec::new();
        refuse(&mut refused, &lines("t", "a\nbc\nd\ne\n"), 2..7, "no");
        let places: Vec<_> = refused.iter().map(|(place, _)| place.clone()).collect();
        assert_eq!(places, [2..5, 5..7]);
        assert!(Arc::ptr_eq(&refused[0].1, &refused[1].1));
    }

    fn groups(reasons: &[&str]) -> Vec<(String, String)> {
        let batch = lines("t", "a\nb\nc\nd\n");
        let refused: Vec<_> = (0..)
            .zip(reasons)
            .map(|(place, reason)| (place * 2..place * 2 + 2, Arc::from(*reason)))
            .collect();
        let groups = by_reason(&batch, &refused).into_iter();
        groups
            .map(|(reason, records)| {
                let text = String::from_utf8(records.concat()).unwrap();
                (reason.into_owned(), text)
            })
            .collect()
    }

    #[test]
    fn records_with_the_same_reason_leave_together_in_order() {
        let pair = |reason: &str, text: &str| (reason.to_owned(), text.to_owned());
        assert_eq!(groups(&[]), []);
        assert_eq!(
            groups(&["x", "x", "y"]),
            [pair("x", "a\nb\n"), pair("y", "c\n")]
        );
        assert_eq!(
            groups(&["x", "y", "x", "y"]),
            [pair("x", "a\nc\n"), pair("y", "b\nd\n")]
        );
    }

    #[test]
    fn a_batch_with_very_many_reasons_leaves_in_few_groups_and_no_record_is_lost() {
        let few: Vec<String> = (0..GROUPS_MAX).map(|number| number.to_string()).collect();
        let groups = group(few.iter().map(|reason| (&**reason, ())));
        assert!(groups.iter().map(|(reason, _)| &**reason).eq(&few));
        let count = 10_000;
        let batch = lines("t", &"a\n".repeat(count));
        let refused: Vec<_> = (0..count)
            .map(|place| (place * 2..place * 2 + 2, format!("no {place}").into()))
            .collect();
        let groups = by_reason(&batch, &refused);
        assert_eq!(groups.len(), GROUPS_MAX);
        assert_eq!((&*groups[0].0, groups[0].1.len()), ("no 0", 1));
        let (reason, records) = groups.last().unwrap();
        assert_eq!(
            reason,
            "one of more than 16 reasons in its batch, such as: no 15"
        );
        assert_eq!(records.len(), count - (GROUPS_MAX - 1));
    }
}
