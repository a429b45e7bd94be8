//! Scans the directories for files that the patterns match.
//!
//! A scan also finds files whose name begins with a matching name (`app.log.1` for `*.log`). These may be renamed files whose
//! rest must be read. A scan enters only directories that may contain matching files. It follows symbolic links, and enters each
//! directory once.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Component, Path, PathBuf},
};

use globset::{Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};

use super::identity::Stat;

/// Directories that are nested deeper than this are not entered: a safeguard.
const DEPTH_MAX: usize = 64;
/// A suffix that rotation adds has at most this many parts.
const SUFFIX_PARTS_MAX: usize = 8;

/// The checked options `paths` and `exclude`.
#[derive(Clone, Debug)]
pub(super) struct Patterns {
    paths: Vec<Pattern>,
    included: GlobSet,
    /// Patterns with a slash: they exclude whole paths.
    excluded_paths: GlobSet,
    /// Patterns without a slash: they exclude names.
    excluded_names: GlobSet,
}

/// One path pattern, prepared for a scan.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    /// The directory at which the scan starts: the parts of the pattern before the first wildcard.
    base: PathBuf,
    /// Matchers for the directories below the base, level by level, up to the first `**`.
    levels: Vec<GlobMatcher>,
    /// Whether all directories below those levels are entered.
    deep: bool,
}

/// A file that was found.
#[derive(Clone, Debug)]
pub(super) struct FoundFile {
    pub path: PathBuf,
    pub stat: Stat,
    /// Whether the patterns match the path. If they do not, the name of the file begins with a matching name.
    pub matches: bool,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The files, sorted by path.
    pub files: Vec<FoundFile>,
    /// The directories that were entered, and those in which a missing directory would appear.
    pub directories: Vec<PathBuf>,
    /// Directories that could not be read, each with the error.
    pub unreadable: Vec<(PathBuf, String)>,
    /// For each pattern, the number of directories that were searched.
    pub searched: Vec<usize>,
}

fn glob(pattern: &str) -> Result<Glob, String> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .build();
    glob.map_err(|error| format!("`{pattern}` is not a path pattern: {}", error.kind()))
}

fn glob_set<'a>(patterns: impl Iterator<Item = &'a str>) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(glob(pattern)?);
    }
    set.build().map_err(|error| error.to_string())
}

fn is_literal(part: &str) -> bool {
    !part.contains(['*', '?', '[', ']', '{', '}', '\\'])
}

impl Pattern {
    fn new(pattern: &str) -> Result<Self, String> {
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        let directories = parts.len().saturating_sub(1);
        let fixed = parts[..directories]
            .iter()
            .take_while(|part| is_literal(part))
            .count();
        let mut base = PathBuf::from(if pattern.starts_with('/') { "/" } else { "." });
        base.extend(&parts[..fixed]);
        let mut levels = Vec::new();
        let mut deep = false;
        for part in &parts[fixed..directories] {
            // A part with `**` spans several levels. So does a part with unbalanced braces: the braces contain the slash at
            // which the pattern was divided. From this level on, any directory may lead to a match.
            if part.contains("**") || part.matches('{').count() != part.matches('}').count() {
                deep = true;
                break;
            }
            levels.push(glob(part)?.compile_matcher());
        }
        deep |= parts.last().is_some_and(|last| last.contains("**"));
        Ok(Self {
            text: pattern.to_owned(),
            base,
            levels,
            deep,
        })
    }

    /// Whether the scan enters the directory `name`, whose parent is `depth` levels below the base.
    fn enters(&self, name: &OsStr, depth: usize) -> bool {
        match self.levels.get(depth) {
            Some(level) => level.is_match(Path::new(name)),
            None => self.deep,
        }
    }
}

impl Patterns {
    /// Compiles the options; the error names the broken pattern.
    pub(super) fn new<'a>(
        paths: impl IntoIterator<Item = &'a str>,
        exclude: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let paths: Vec<String> = paths.into_iter().map(tidy).collect();
        let (by_path, by_name): (Vec<_>, Vec<_>) = exclude
            .into_iter()
            .partition(|pattern| pattern.contains('/'));
        let by_path: Vec<String> = by_path.into_iter().map(tidy).collect();
        Ok(Self {
            included: glob_set(paths.iter().map(String::as_str))?,
            paths: paths
                .iter()
                .map(|path| Pattern::new(path))
                .collect::<Result<_, _>>()?,
            excluded_paths: glob_set(by_path.iter().map(String::as_str))?,
            excluded_names: glob_set(by_name.into_iter())?,
        })
    }

    fn excludes(&self, path: &Path) -> bool {
        self.excluded_paths.is_match(path)
            || path
                .file_name()
                .is_some_and(|name| self.excluded_names.is_match(Path::new(name)))
    }

    /// Whether a file with this path is read.
    pub(super) fn matches(&self, path: &Path) -> bool {
        self.included.is_match(path) && !self.excludes(path)
    }

    /// Whether a scan finds a file with this path: it matches, or begins with a matching path.
    pub(super) fn finds(&self, path: &Path) -> bool {
        !self.excludes(path)
            && (self.included.is_match(path) || self.originals(path).next().is_some())
    }

    /// The matching paths that the file at `path` may have had before log rotation added a suffix. The longest path comes first.
    pub(super) fn originals<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let cuts = (1..name.len())
            .rev()
            .filter(|at| !name[*at].is_ascii_alphanumeric());
        cuts.take(SUFFIX_PARTS_MAX)
            .map(|at| path.with_file_name(OsStr::from_bytes(&name[..at])))
            .filter(|shorter| self.matches(shorter))
    }

    /// A message for each pattern that matches no file of the scan. The message says what was searched, or which directory does
    /// not exist or cannot be read.
    pub(super) fn unmatched(&self, scan: &Scan) -> Vec<String> {
        let mut matched = vec![false; self.paths.len()];
        for found in scan.files.iter().filter(|found| found.matches) {
            for index in self.included.matches(&found.path) {
                matched[index] = true;
            }
        }
        let excludes = !(self.excluded_names.is_empty() && self.excluded_paths.is_empty());
        let what = if excludes {
            "no file that is not excluded"
        } else {
            "no file"
        };
        let patterns = self.paths.iter().zip(&scan.searched).zip(matched);
        let unmatched = patterns.filter(|(_, matched)| !matched);
        unmatched
            .map(|((pattern, searched), _)| {
                let base = pattern.base.display();
                let unreadable = scan.unreadable.iter();
                let mut unreadable = unreadable.filter(|(path, _)| path.starts_with(&pattern.base));
                let why = match (unreadable.next_back(), *searched) {
                    (Some((path, why)), _) => {
                        format!("the directory {} cannot be read: {why}", path.display())
                    }
                    (None, 0) => format!("the directory {base} does not exist"),
                    (None, 1) => format!("searched the directory {base}"),
                    (None, n) => format!("searched {n} directories below {base}"),
                };
                format!("`{}` matches {what} ({why})", pattern.text)
            })
            .collect()
    }

    /// Scans all directories. Blocks the thread, for a long time in large trees, so it must not run on a data thread.
    pub(super) fn scan(&self) -> Scan {
        let mut scan = Scan::default();
        let mut known = HashSet::new();
        for pattern in &self.paths {
            let mut entered = HashSet::new();
            self.enter(
                pattern,
                pattern.base.clone(),
                0,
                &mut entered,
                &mut known,
                &mut scan,
            );
            scan.searched.push(entered.len());
        }
        scan.files.sort_by(|a, b| a.path.cmp(&b.path));
        scan.directories.sort();
        scan.directories.dedup();
        scan
    }

    fn enter(
        &self,
        pattern: &Pattern,
        directory: PathBuf,
        depth: usize,
        entered: &mut HashSet<(u64, u64)>,
        known: &mut HashSet<PathBuf>,
        scan: &mut Scan,
    ) {
        let metadata = fs::metadata(&directory);
        let entries = match (&metadata, fs::read_dir(&directory)) {
            (Ok(metadata), Ok(entries)) if entered.insert((metadata.dev(), metadata.ino())) => {
                entries
            }
            (Ok(_), Ok(_)) => return,
            (_, Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                // Watches the nearest existing parent, because the missing directory will appear there.
                let there = directory
                    .ancestors()
                    .skip(1)
                    .find(|directory| directory.is_dir());
                scan.directories.extend(there.map(Path::to_path_buf));
                return;
            }
            (_, Err(error)) => return scan.unreadable.push((directory, error.to_string())),
            (Err(error), _) => return scan.unreadable.push((directory, error.to_string())),
        };
        scan.directories.push(directory.clone());
        for entry in entries.flatten() {
            let name = entry.file_name();
            let path = directory.join(&name);
            let is_directory = match entry.file_type() {
                Ok(kind) if kind.is_dir() => true,
                Ok(kind) if kind.is_symlink() => path.is_dir(),
                _ => false,
            };
            if !is_directory {
                self.add_file(path, known, scan);
            } else if depth < DEPTH_MAX && pattern.enters(&name, depth) {
                self.enter(pattern, path, depth + 1, entered, known, scan);
            }
        }
    }

    fn add_file(&self, path: PathBuf, known: &mut HashSet<PathBuf>, scan: &mut Scan) {
        let path = without_dot(path);
        if known.contains(&path) || self.excludes(&path) {
            return;
        }
        let matches = self.included.is_match(&path);
        if !matches && self.originals(&path).next().is_none() {
            return;
        }
        // This fails if the file was removed since the directory was read, or is a broken link.
        let Ok(stat) = Stat::at(&path) else { return };
        if stat.is_file {
            known.insert(path.clone());
            scan.files.push(FoundFile {
                path,
                stat,
                matches,
            });
        }
    }
}

/// Removes `./` from the start of a path, because the patterns have no `./` either.
pub(super) fn without_dot(path: PathBuf) -> PathBuf {
    match path.strip_prefix("./") {
        Ok(short) => short.to_path_buf(),
        Err(_) => path,
    }
}

/// Removes `.` parts and doubled slashes from a pattern, because the paths that are compared with it have none.
pub(super) fn tidy(pattern: &str) -> String {
    let tidied: PathBuf = Path::new(pattern)
        .components()
        .filter(|part| *part != Component::CurDir)
        .collect();
    tidied.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x\n").unwrap();
        }
        root
    }

    /// Returns the matching names, and the names that only begin with a matching one.
    fn found(root: &Path, paths: &[&str], exclude: &[&str]) -> (Vec<String>, Vec<String>) {
        let within = |pattern: &&str| format!("{}/{pattern}", root.display());
        let paths: Vec<String> = paths.iter().map(within).collect();
        let patterns =
            Patterns::new(paths.iter().map(String::as_str), exclude.iter().copied()).unwrap();
        let (matching, others): (Vec<_>, Vec<_>) = patterns
            .scan()
            .files
            .into_iter()
            .partition(|file| file.matches);
        let name = |file: FoundFile| file.path.strip_prefix(root).unwrap().display().to_string();
        (
            matching.into_iter().map(name).collect(),
            others.into_iter().map(name).collect(),
        )
    }

    #[test]
    fn stars_braces_and_excludes_choose_the_files() {
        let root = tree(&[
            "a.log",
            "b.log",
            "c.txt",
            "old.gz",
            "x/d.log",
            "x/y/e.log",
            "x/y/z/f.log",
        ]);
        let find = |paths: &[&str], exclude: &[&str]| found(root.path(), paths, exclude).0;
        assert_eq!(find(&["*.log"], &[]), ["a.log", "b.log"]);
        assert_eq!(find(&["{a,c}.*"], &[]), ["a.log", "c.txt"]);
        assert_eq!(
            find(&["**/*.log"], &["b.*"]),
            ["a.log", "x/d.log", "x/y/e.log", "x/y/z/f.log"]
        );
        assert_eq!(
            find(&["*/*.log", "x/**"], &[]),
            ["x/d.log", "x/y/e.log", "x/y/z/f.log"]
        );
        assert_eq!(find(&["x/{y,q/r}/*.log"], &[]), ["x/y/e.log"]);
        let below = format!("{}/x/**", root.path().display());
        assert_eq!(find(&["**/*.log"], &[&below]), ["a.log", "b.log"]);
        assert_eq!(find(&["nothing/*.log"], &[]), Vec::<String>::new());
    }

    #[test]
    fn rotated_names_are_found_beside_matching_ones() {
        let root = tree(&[
            "a.log",
            "a.log.1",
            "a.log-20260101",
            "a.log.2.gz",
            "b.txt",
            "b.txt.1",
        ]);
        let (matching, rotated) = found(root.path(), &["*.log"], &["*.gz"]);
        assert_eq!(matching, ["a.log"]);
        assert_eq!(rotated, ["a.log-20260101", "a.log.1"]);
    }

    #[test]
    fn links_are_followed_and_a_loop_of_directories_ends() {
        let root = tree(&["x/a.log"]);
        std::os::unix::fs::symlink(root.path().join("x/a.log"), root.path().join("link.log"))
            .unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("x/loop")).unwrap();
        let (matching, _) = found(root.path(), &["**/*.log"], &[]);
        assert_eq!(matching, ["link.log", "x/a.log"]);
    }

    #[test]
    fn the_nearest_existing_parent_of_a_missing_directory_is_watched() {
        let root = tree(&["x/a.log"]);
        let pattern = format!("{}/x/later/deeper/*.log", root.path().display());
        let scan = Patterns::new([pattern.as_str()], []).unwrap().scan();
        assert_eq!(scan.directories, [root.path().join("x")]);
    }

    #[test]
    fn patterns_that_match_no_file_are_reported_with_the_searched_directories() {
        let root = tree(&["a.log", "x/y/b.txt"]);
        let place = root.path().display();
        let unmatched = |paths: &[&str], exclude: &[&str]| {
            let paths: Vec<_> = paths.iter().map(|path| format!("{place}/{path}")).collect();
            let paths = paths.iter().map(String::as_str);
            let patterns = Patterns::new(paths, exclude.iter().copied()).unwrap();
            patterns.unmatched(&patterns.scan())
        };
        assert_eq!(unmatched(&["*.log", "**/*.txt"], &[]), [""; 0]);
        assert_eq!(
            unmatched(&["*.log", "*.lgo", "x/**/*.log", "later/*.log"], &[]),
            [
                format!("`{place}/*.lgo` matches no file (searched the directory {place})"),
                format!(
                    "`{place}/x/**/*.log` matches no file (searched 2 directories below {place}/x)"
                ),
                format!(
                    "`{place}/later/*.log` matches no file (the directory {place}/later does not exist)"
                ),
            ]
        );
        let excluded = unmatched(&["*.log"], &["a.*"]);
        assert!(excluded[0].contains("no file that is not excluded"));
    }

    #[test]
    fn a_broken_pattern_is_named() {
        assert!(Patterns::new(["/a/{b"], []).unwrap_err().contains("/a/{b"));
    }
}
