//! Runs the cases in `testdata`. An `.in` file has options in its first line, and then one text per line. The `.out` file has the
//! expected result of each text. With `UPDATE=1` in the environment, the test rewrites the `.out` files. The lines of `apache_*`
//! and `nginx_*` were written by Debian's apache2 2.4.71 and nginx 1.22.1, which received unusual requests over sockets.

use std::{fs, path::Path};

use super::*;

#[test]
fn every_case_gives_its_expected_records() {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let directory = Path::new(&here).join("src/parse/testdata");
    let (mut cases, mut wrong) = (0, Vec::new());
    for case in fs::read_dir(directory).unwrap() {
        let input = case.unwrap().path();
        if input.extension() != Some("in".as_ref()) {
            continue;
        }
        cases += 1;
        let text = fs::read(&input).unwrap();
        let text = text.strip_suffix(b"\n").unwrap();
        let mut lines = text.split(|byte| *byte == b'\n');
        let mut parser = parser(str::from_utf8(lines.next().unwrap()).unwrap());
        let mut seen = String::new();
        for text in lines {
            seen += &line(&mut parser, text);
            seen.push('\n');
        }
        let expected = input.with_extension("out");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&expected, &seen).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != seen {
            wrong.push(format!("{}:\n{seen}", input.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases >= 20, "only {cases} cases were found");
}
