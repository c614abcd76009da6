//! Where a recording's bytes come from: a directory, or the data that ships with the program.

use super::format::Manifest;
use memmap2::Mmap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Component, Path};

/// The JSON files that a recording may have.
const MANIFESTS: [&str; 2] = ["manifest.json", "edge.json"];

/// No manifest is this long; JSON is held in memory as a whole.
const MAX_JSON: u64 = 256 << 20;

macro_rules! shipped {
    ($($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("../../../../data/traces/", $name)).as_slice())),*]
    };
}

/// The shipped data is part of the program, so that an installed one has it too.
const SHIPPED: &[(&str, &[u8])] =
    shipped!["manifest.json", "traces.safetensors", "edge.json", "edge.safetensors"];

/// One JSON file with the safetensors that it names.
pub(super) struct Source {
    pub(super) name: &'static str,
    /// Where it is, for messages.
    pub(super) path: String,
    pub(super) manifest: Manifest,
    /// Each with where it is.
    pub(super) files: Vec<(String, Bytes)>,
}

/// A file's contents. A mapped file must not shrink while it is read.
pub(super) enum Bytes {
    Static(&'static [u8]),
    Mapped(Mmap),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Static(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }
}

/// Everything in `dir`, or everything that ships.
pub(super) fn open(dir: Option<&Path>) -> Result<Vec<Source>, String> {
    if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
        return Err(format!("{}: must be a directory", dir.display()));
    }
    let mut sources = Vec::new();
    for name in MANIFESTS {
        let Some(json) = read(dir, name)? else { continue };
        let at = |e: String| format!("{}: {e}", shown(dir, name));
        if json.len() as u64 > MAX_JSON {
            return Err(at(format!("must be at most {MAX_JSON} bytes, is {}", json.len())));
        }
        let manifest = Manifest::parse(&json).map_err(at)?;
        let mut files = Vec::new();
        for file in &manifest.files {
            let path = Path::new(file);
            let beside = path.components().all(|part| matches!(part, Component::Normal(_)));
            if file.is_empty() || !beside {
                return Err(at(format!("files must lie beside it, {file:?} does not")));
            }
            let bytes = read(dir, file)?.ok_or_else(|| at(format!("names {file}, which is not there")))?;
            files.push((shown(dir, file), bytes));
        }
        sources.push(Source { name, path: shown(dir, name), manifest, files });
    }
    if sources.is_empty() {
        return Err(format!("{}: must hold {}, has neither", shown(dir, ""), MANIFESTS.join(" or ")));
    }
    Ok(sources)
}

fn shown(dir: Option<&Path>, name: &str) -> String {
    dir.map_or(format!("shipped {name}"), |dir| dir.join(name).display().to_string())
}

/// A file's bytes, or `None` where there is no such file.
fn read(dir: Option<&Path>, name: &str) -> Result<Option<Bytes>, String> {
    let Some(dir) = dir else {
        let file = SHIPPED.iter().find(|(shipped, _)| *shipped == name);
        return Ok(file.map(|(_, bytes)| Bytes::Static(bytes)));
    };
    let path = dir.join(name);
    let error = |e: std::io::Error| format!("{}: {e}", path.display());
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(error(e)),
        // Opening a pipe would wait for ever.
        Ok(meta) if !meta.is_file() => return Err(format!("{}: must be a file", path.display())),
        Ok(_) => {}
    }
    let file = File::open(&path).map_err(error)?;
    // SAFETY: the map is only read. Nobody is expected to write a recording while it is replayed; whoever does
    // changes numbers that are checked before use, or stops the program.
    let map = unsafe { Mmap::map(&file) }.map_err(error)?;
    Ok(Some(Bytes::Mapped(map)))
}
