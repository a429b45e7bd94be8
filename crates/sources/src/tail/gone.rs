//! Files that an earlier run was reading and that the first scan does not find: they were removed, or moved to another
//! directory, while the source did not run. The unread bytes are reported and counted.

use std::{collections::HashMap, fs, os::unix::fs::DirEntryExt, path::PathBuf};

use millstream_pipeline::report::Reporter;
use millstream_record::FileId;

use super::{
    gzip,
    identity::{HEAD_BYTES_MAX, Inode, Stat, file_id, head_key},
    known::Known,
    names::is_rotated,
    options::{Compressed, Options},
    positions::Positions,
    scan::{FoundFile, Scan},
    source_state::TailMeters,
};

/// Log rotation moves files to a directory near by (`olddir`). The search enters directories down to this depth, below the directory of
/// the file and below its parent.
const DEPTH_MAX: usize = 2;
/// The search ends after this many directory entries.
const ENTRIES_MAX: usize = 20_000;
/// The number of files that the log names.
const NAMED_MAX: usize = 5;

/// A file of which the earlier run expected more.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    id: FileId,
    /// Its length, as far as the earlier run has seen it.
    len: u64,
    path: PathBuf,
}

/// Where a file is now, and how long it is.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    len: u64,
}

/// The files that the last scan of the earlier run has seen, and of which that run expected more.
pub(super) fn awaited(stored: &Positions) -> Vec<Awaited> {
    let Some(ran) = stored.ran else {
        return Vec::new();
    };
    let ran = u64::try_from(ran.0).unwrap_or(0) / 1_000_000_000;
    let seen = stored.entries.iter().filter(|entry| entry.seen >= ran);
    seen.filter_map(|entry| {
        Some(Awaited {
            id: entry.id,
            len: entry.left?.max(entry.mark.offset),
            path: PathBuf::from(&entry.path),
        })
    })
    .collect()
}

/// Those of the files that a scan does not find, although it looked for them.
pub(super) fn absent(mut awaited: Vec<Awaited>, scan: &Scan, options: &Options) -> Vec<Awaited> {
    awaited.retain(|file| {
        let is_readable = scan
            .unreadable
            .iter()
            .all(|(directory, _)| !file.path.starts_with(directory));
        let is_found = scan.files.iter().any(|found| file.is(found.stat.inode));
        is_readable && !is_found && options.patterns.finds(&file.path)
    });
    if options.compressed != Compressed::Skip {
        awaited.retain(|file| !scan.files.iter().any(|found| file.is_compressed_as(found)));
    }
    awaited
}

impl Awaited {
    fn inode(&self) -> Inode {
        Inode {
            device: self.id.device,
            number: self.id.inode,
            birth: self.id.birth,
        }
    }

    fn is(&self, inode: Inode) -> bool {
        // Device numbers may change when the machine boots.
        let is_same_device = inode.device == self.id.device || inode.birth != 0;
        (inode.number, inode.birth) == (self.id.inode, self.id.birth) && is_same_device
    }

    /// Whether the found file is the compressed form of this one.
    fn is_compressed_as(&self, found: &FoundFile) -> bool {
        let plain = found.path.with_extension("");
        let is_named_so = plain == self.path
            || is_rotated(&plain, &self.path)
            || is_rotated(&found.path, &self.path);
        if !is_named_so || found.path.extension().is_none_or(|end| end != "gz") {
            return false;
        }
        let text = fs::File::open(&found.path);
        let text = text.and_then(|file| gzip::first_line(&file, HEAD_BYTES_MAX));
        let head = text.map(|text| head_key(&file_id(found.stat.inode, 0, &text)));
        head.is_ok_and(|head| head == head_key(&self.id))
    }
}

/// Looks for the files near their old paths. Blocks.
fn search(files: &[Awaited]) -> Vec<Option<Place>> {
    let mut places: Vec<Option<Place>> = files.iter().map(|_| None).collect();
    let mut wanted: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut roots = Vec::new();
    for (number, file) in files.iter().enumerate() {
        wanted.entry(file.id.inode).or_default().push(number);
        let directories = file.path.ancestors().skip(1).take(2);
        // The root directory has everything below it.
        roots.extend(directories.filter(|directory| directory.parent().is_some()));
    }
    roots.sort_unstable();
    roots.dedup();
    let mut left = ENTRIES_MAX;
    let mut queue: Vec<(PathBuf, usize)> = Vec::new();
    for root in roots {
        queue.push((root.to_path_buf(), 0));
        while let Some((directory, depth)) = queue.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                left -= 1;
                if left == 0 {
                    return places;
                }
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_directory && depth < DEPTH_MAX {
                    queue.push((entry.path(), depth + 1));
                }
                for number in wanted.get(&entry.ino()).into_iter().flatten() {
                    let path = entry.path();
                    if let Ok(stat) = Stat::at(&path)
                        && files[*number].is(stat.inode)
                    {
                        let len = stat.len;
                        places[*number] = Some(Place { path, len });
                    }
                }
            }
        }
    }
    places
}

/// Reports how many bytes of removed files were not read.
pub(super) async fn report(
    files: Vec<Awaited>,
    known: &mut Known,
    options: &Options,
    meters: &TailMeters,
    reporter: &Reporter,
) {
    if files.is_empty() {
        return;
    }
    let searched = tokio::task::spawn_blocking(move || {
        let places = search(&files);
        files.into_iter().zip(places).collect::<Vec<_>>()
    });
    let mut texts = Vec::new();
    for (file, place) in searched.await.unwrap_or_default() {
        let read = known.find(file.inode()).map_or(0, |past| past.offset);
        known.give_up(file.inode());
        let path = file.path.display();
        texts.push(match place {
            // A file that the next scan finds was renamed just now.
            Some(place) if options.patterns.finds(&place.path) || place.len <= read => continue,
            Some(Place { path: to, len }) => {
                meters.lost.add(len - read);
                format!(
                    "{path} was moved to {} while Millstream did not run, and the {} bytes after byte {read} are not read: \
                     to read them, add the new path to `paths`",
                    to.display(),
                    len - read
                )
            }
            None if file.len > read => {
                meters.lost.add(file.len - read);
                format!(
                    "{path} was removed or moved away while Millstream did not run: {} bytes after byte {read} are not read, \
                     and nothing that was written to it after the stop",
                    file.len - read
                )
            }
            None => format!(
                "{path} was removed or moved away while Millstream did not run: it was read to byte {read}, its end at the \
                 stop; what was written to it later is not read"
            ),
        });
    }
    let more = texts.len().saturating_sub(NAMED_MAX);
    if texts.is_empty() {
        return;
    }
    texts.truncate(NAMED_MAX);
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more files (`lost_bytes` counts their bytes, too)"),
    };
    reporter.warn("unread", format_args!("{}{more}", texts.join("; ")));
}
