//! The pages of the cookbook: every configuration passes `check` and `test`, and turns its input into its output.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::program::tree;

/// A page: its configuration, the files before a run (`input`), and the files after it (`output`).
struct Page {
    name: String,
    config: String,
    input: BTreeMap<String, String>,
    output: BTreeMap<String, String>,
}

fn cookbook() -> PathBuf {
    tree().join("docs/cookbook")
}

fn pages() -> Vec<Page> {
    let files = fs::read_dir(cookbook()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let paths = paths.filter(|path| !path.ends_with("README.md"));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        page(name, &fs::read_to_string(path).unwrap())
    };
    paths.map(read).collect()
}

/// Reads the code blocks of a page. The line above the block of a file names the file, such as: Input, `logs/app.log`:
fn page(name: String, text: &str) -> Page {
    let mut page = Page {
        name,
        config: String::new(),
        input: BTreeMap::new(),
        output: BTreeMap::new(),
    };
    let parts: Vec<_> = text.split("```").collect();
    for pair in parts.chunks_exact(2) {
        let (language, block) = pair[1].split_once('\n').unwrap();
        let caption = pair[0].trim_end().lines().last().unwrap_or_default();
        let file = caption.split('`').nth(1).unwrap_or_default().to_owned();
        let files = match language {
            "yaml" => {
                page.config.push_str(block);
                continue;
            }
            _ if caption.starts_with("Input, ") => &mut page.input,
            _ if caption.starts_with("Output, ") => &mut page.output,
            _ => panic!(
                "{}: the block below `{caption}` is neither a configuration nor a file",
                page.name
            ),
        };
        assert!(files.insert(file, block.to_owned()).is_none(), "{caption}");
    }
    page
}

fn millstream(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(arguments)
        .arg("millstream.yaml")
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Adds the files below a directory to `found`, by their paths relative to `root`.
fn files(root: &Path, directory: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(root, &path, found);
        } else {
            let name = path.strip_prefix(root).unwrap().to_string_lossy();
            found.insert(name.into_owned(), fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_page_of_the_cookbook_passes_check_and_its_cases_and_yields_its_output() {
    let pages = pages();
    assert!(pages.len() >= 7, "only {} pages", pages.len());
    for page in pages {
        let name = &page.name;
        // A build without the feature `vrl` refuses `remap`.
        if cfg!(not(feature = "vrl")) && page.config.contains("type: remap") {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let config = format!("{}\napi: {{ listen: [] }}\n", page.config);
        fs::write(place.join("millstream.yaml"), config).unwrap();
        assert!(!page.input.is_empty() && !page.output.is_empty(), "{name}");
        for (file, text) in &page.input {
            let file = place.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        for arguments in [&["check"][..], &["test"], &["run", "--once"]] {
            let done = millstream(place, arguments);
            let (out, errors) = (
                String::from_utf8(done.stdout).unwrap(),
                String::from_utf8(done.stderr).unwrap(),
            );
            assert_eq!(done.status.code(), Some(0), "{name}: {out}{errors}");
            match arguments {
                ["test"] => assert!(out.contains("ok      millstream.yaml:"), "{name}: {out}"),
                ["check"] => assert!(!errors.contains("warning: "), "{name}: {errors}"),
                _ => {}
            }
        }
        let mut found = BTreeMap::new();
        files(place, &place.join("out"), &mut found);
        assert_eq!(found, page.output, "{name}");
    }
}

#[test]
fn the_index_of_the_cookbook_names_every_page() {
    let index = fs::read_to_string(cookbook().join("README.md")).unwrap();
    for page in pages() {
        assert!(
            index.contains(&format!("]({})", page.name)),
            "{}",
            page.name
        );
    }
}
