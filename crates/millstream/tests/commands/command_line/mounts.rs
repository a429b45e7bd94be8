//! Directories that must not be mounted: `check` and `run` refuse them and name the line.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::{code, errors, millstream, write};

/// The errors of `check` about a configuration with these parts. `explain` and `run` report the same.
fn said(directory: &Path, top: &str, sources: &str, sink: &str) -> String {
    let text = format!(
        "{top}\napi: {{ listen: [] }}\nsources:\n{sources}\nsinks:\n  out: {{ type: file, inputs: [\"*\"], path: \"{sink}\" }}\n"
    );
    let path = write(directory, &text);
    let path = path.to_str().unwrap();
    let checked = millstream(&["check", path]);
    let all = errors(&checked);
    if code(&checked) != 0 {
        for command in [&["explain", path][..], &["run", path][..]] {
            let other = millstream(command);
            assert_eq!(
                (code(&other), errors(&other)),
                (code(&checked), all.clone())
            );
        }
    }
    all
}

#[test]
fn a_mount_that_hides_the_system_or_files_of_millstream_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    symlink(place.join("mnt"), place.join("link")).unwrap();
    fs::create_dir(place.join("mnt")).unwrap();
    let at = place.display();
    let mount = |path: &str| format!("  drop: {{ type: fuse, mount: \"{path}\" }}");
    let data = format!("data_dir: {at}/data");
    let (own, out) = (mount(&format!("{at}/mnt")), format!("{at}/out"));
    let refused = [
        (
            &*data,
            mount("/var/../var/log"),
            &*out,
            "directory of the system",
        ),
        (
            &format!("data_dir: {at}/mnt/data"),
            own.clone(),
            &out,
            "is below the mount",
        ),
        (
            &format!("data_dir: {at}/link/data"),
            own.clone(),
            &out,
            "is below the mount",
        ),
        (
            &data,
            mount(&format!("{at}/data/mnt")),
            &out,
            "is below `data_dir`",
        ),
        (&data, own.clone(), &format!("{at}/mnt/out"), "writes below"),
        (
            &data,
            own.clone(),
            &format!("{at}/link/x/{{tag}}.log"),
            "writes below",
        ),
        (
            &data,
            mount(&format!("{at}/link")),
            &format!("{at}/x/../mnt/out"),
            "writes below",
        ),
        (
            &data,
            mount(&at.to_string()),
            "/nowhere/out",
            "would hide the configuration",
        ),
    ];
    for (top, source, sink, part) in refused {
        let all = said(&place, top, &source, sink);
        assert!(all.contains(part), "no `{part}` in {all}");
        assert!(all.contains(".yaml:"), "{all}");
    }
    let copies = format!(
        "  drop: {{ type: fuse, mount: {at}/mnt, rules: [{{ path: a, exec: {{ command: [cat], output: {at}/link/o }} }}] }}"
    );
    assert!(said(&place, &data, &copies, &out).contains("`drop` writes below"));
    let two = format!("{own}\n  other: {{ type: fuse, mount: {at}/mnt/below }}");
    assert!(said(&place, &data, &two, &out).contains("one hides the other"));
    let same = format!("{own}\n  other: {{ type: fuse, mount: {at}/link }}");
    assert!(said(&place, &data, &same, &out).contains("mount the same directory"));
    let good = format!("{own}\n  read: {{ type: tail, paths: [\"{at}/mnt/*.log\"] }}");
    assert_eq!(said(&place, &data, &good, &out), "");
}

#[test]
fn a_first_start_over_files_is_refused_by_check_and_names_them() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let at = place.display();
    fs::create_dir(place.join("mnt")).unwrap();
    fs::write(place.join("mnt/photo.jpg"), b"\xff\xd8\0").unwrap();
    let source = |more: &str| format!("  drop: {{ type: fuse, mount: {at}/mnt{more} }}");
    let (data, out) = (format!("data_dir: {at}/data"), format!("{at}/out"));
    let all = said(&place, &data, &source(""), &out);
    assert!(
        all.contains("photo.jpg") && all.contains("adopt: true"),
        "{all}"
    );
    for more in [", adopt: true", ", below: keep"] {
        assert_eq!(said(&place, &data, &source(more), &out), "");
    }
    assert_eq!(
        fs::read(place.join("mnt/photo.jpg")).unwrap(),
        b"\xff\xd8\0"
    );
}
