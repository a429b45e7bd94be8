//! Fuzzes conditions and field changes with any bytes as the body of a batch. Both terminate. The ranges into which conditions
//! divide a batch have no gaps and no overlaps. A valid batch stays valid after the changes.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::{
    condition::{Condition, Matcher, TagTest, Where},
    edit::{Changes, Edit},
    msgpack::Walker,
    syslog::TimeZone,
};

/// Options that reach every part of conditions and of field changes.
const CONDITIONS: [&str; 3] = [
    r#"{".a": ["x", 1, true, null], ".b": {"gt": 1.5}}"#,
    r#"{"any": [{".a.b": {"exists": true}}, {".message": {"glob": "a*b"}}]}"#,
    r#"{"not": {".a": {"regex": "^x+$"}}, "host": "web-1"}"#,
];
const CHANGES: [&str; 4] = [
    r#"{".a": ".c", ".b.x": ".x.y", ".m.x": ".m.y"}"#,
    r#"{".n.x": "{.b|none}", ".d": 5}"#,
    r#"[".r", ".message.r"]"#,
    r#"[".c", ".x", ".m", ".n.x", ".d", ".message"]"#,
];

fn conditions() -> Matcher {
    let conditions: Vec<Condition> = CONDITIONS
        .iter()
        .map(|json| match serde_json::from_str(json) {
            Ok(Where::Map(condition)) => condition,
            other => panic!("{json}: {other:?}"),
        })
        .collect();
    let tags = |_: &[String]| -> Result<TagTest, String> { Ok(Arc::new(|_: &str| true)) };
    Matcher::new(&conditions, &tags).expect("no tags")
}

fn edit(keeps: bool) -> Edit {
    let [rename, set, remove, keep] = CHANGES;
    let changes = Changes {
        rename: serde_json::from_str(rename).expect("fields"),
        set: serde_json::from_str(set).expect("values"),
        remove: serde_json::from_str(remove).expect("fields"),
        keep: keeps.then(|| serde_json::from_str(keep).expect("fields")),
    };
    changes.compile(&TimeZone::UTC).expect("the changes fit")
}

static COMPILED: LazyLock<(Matcher, Edit, Edit)> =
    LazyLock::new(|| (conditions(), edit(false), edit(true)));

fuzz_target!(|data: &[u8]| {
    let [how, body @ ..] = data else {
        return;
    };
    let (mut matcher, all, kept) = COMPILED.clone();
    let mut edit = [all, kept][usize::from(how & 1)].clone();
    let lines = how & 2 == 2;
    let mut values = Values::new();
    values.set("host", "web-1");
    let mut walker = Walker::new();
    let valid = !lines
        && walker.walk(body).is_ok()
        && walker.whole() == body.len()
        && walker.misfits() == 0;
    let batch = Batch {
        tag: "t".into(),
        encoding: if lines {
            Encoding::Lines
        } else {
            Encoding::Packed
        },
        plain: false,
        body: body.to_vec().into(),
        count: walker.entries(),
        received: Time(1_795_243_231_500_000_000),
        values: Arc::new(values),
        origins: Vec::new(),
    };
    let (mut end, mut records) = (0, 0);
    matcher.runs(&batch, |run| {
        assert_eq!((run.range.start, run.first), (end, records));
        (end, records) = (run.range.end, records + run.count);
    });
    let (mut out, mut rejects) = (Vec::new(), Vec::new());
    let changed = edit.apply(&batch, &mut out, &mut rejects);
    if valid {
        assert_eq!((end, records), (body.len(), walker.entries()));
        assert_eq!(changed as usize + rejects.len(), walker.entries() as usize);
    }
    if valid || lines {
        let mut walker = Walker::new();
        assert!(walker.walk(&out).is_ok());
        assert_eq!(
            (walker.whole(), walker.entries(), walker.misfits()),
            (out.len(), changed, 0)
        );
    }
});
