//! Compiled kernels on disk. A file is named by the hash of all that went into it, is written beside its name and renamed, and
//! holds a hash of its name and its contents: what is torn, flipped, swapped or foreign is compiled anew.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder of compiled kernels; `None` where there is no place for one.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

type Hash = [u8; 32];

/// No kernel is as large: such a file is not even read.
const MOST_BYTES: u64 = 64 << 20;

/// What the names of unfinished files start with, and the age at which nobody can still be writing one.
const UNFINISHED: &str = ".abreast-";
const ABANDONED: Duration = Duration::from_secs(3600);

impl Cache {
    /// The folder of `ABREAST_CACHE`, or `abreast` in the user's cache folder.
    pub(super) fn of_user() -> Cache {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = var("ABREAST_CACHE").or_else(|| {
            let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
            Some(base.join("abreast"))
        });
        Cache { folder }
    }

    /// A folder of a test's own.
    #[cfg(test)]
    pub(super) fn at(folder: &Path) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    /// The folder, for people.
    pub(super) fn describe(&self) -> String {
        self.folder.as_ref().map_or("none".into(), |folder| folder.display().to_string())
    }

    /// What `load` makes of the file under `key`; where there is none that is whole and that it takes, of what `make` gives, which
    /// is then kept. A disk that fails costs time, never the call.
    pub(super) fn get_or<T, E>(
        &self,
        key: &[&[u8]],
        make: impl FnOnce() -> Result<Vec<u8>, E>,
        load: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Result<T, E> {
        let name = name(key);
        if let Some(loaded) = self.read(&name).and_then(|code| load(&code).ok()) {
            return Ok(loaded);
        }
        let code = make()?;
        let loaded = load(&code)?;
        // Without a disk the kernel is compiled again next time: no reason to fail.
        let _ = self.store(&name, &code);
        Ok(loaded)
    }

    fn path(&self, name: &Hash) -> Option<PathBuf> {
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(format!("{hex}.cubin")))
    }

    /// What was stored under `name`, if it is whole.
    fn read(&self, name: &Hash) -> Option<Vec<u8>> {
        let path = self.path(name)?;
        let about = std::fs::metadata(&path).ok()?;
        // A pipe would be waited for.
        if !about.is_file() || about.len() > MOST_BYTES {
            return None;
        }
        let mut file = std::fs::read(&path).ok()?;
        let code = file.split_off(file.len().min(size_of::<Hash>()));
        (file == seal(name, &code)).then_some(code)
    }

    fn store(&self, name: &Hash, code: &[u8]) -> std::io::Result<()> {
        let (Some(folder), Some(path)) = (&self.folder, self.path(name)) else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        sweep(folder)?;
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
        file.write_all(&seal(name, code))?;
        file.write_all(code)?;
        // Not flushed to the disk: after a loss of power the seal tells.
        file.persist(path)?;
        Ok(())
    }
}

/// Removes what processes left behind that were killed while they wrote.
fn sweep(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)?.flatten() {
        let unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if unfinished && age().is_some_and(|age| age > ABANDONED) {
            // Another process may have been faster.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Each part with its length, so that no two keys run together.
fn name(key: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for part in key {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Covers the name too: a file is good under its own name only.
fn seal(name: &Hash, code: &[u8]) -> Hash {
    Sha256::new().chain_update(name).chain_update(code).finalize().into()
}

#[cfg(test)]
mod tests;
