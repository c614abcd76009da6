//! Compiled kernels on disk. A file is named by the hash of all that went into it, is written beside its name and renamed, and
//! holds a hash of its own contents: what is torn, flipped or foreign is compiled anew.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;

/// A folder of compiled kernels; `None` where there is no place for one.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

const DIGEST: usize = 32;

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

    /// The folder, for people.
    pub(super) fn describe(&self) -> String {
        self.folder.as_ref().map_or("none".into(), |folder| folder.display().to_string())
    }

    /// What was stored under `key`, or what `make` gives, stored. A disk that fails costs time, never the call.
    pub(super) fn get_or<E>(
        &self,
        key: &[&[u8]],
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let Some(path) = self.folder.as_ref().map(|folder| folder.join(name(key))) else { return make() };
        if let Some(bytes) = std::fs::read(&path).ok().and_then(unseal) {
            return Ok(bytes);
        }
        let bytes = make()?;
        // Without a disk the kernel is compiled again next time: no reason to fail.
        let _ = self.store(&path, &bytes);
        Ok(bytes)
    }

    fn store(&self, path: &PathBuf, bytes: &[u8]) -> std::io::Result<()> {
        let folder = self.folder.as_deref().expect("a path comes from the folder");
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&Sha256::digest(bytes))?;
        file.write_all(bytes)?;
        file.persist(path)?;
        Ok(())
    }
}

/// Each part with its length, so that no two keys run together.
fn name(key: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in key {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.cubin")
}

fn unseal(mut file: Vec<u8>) -> Option<Vec<u8>> {
    if file.len() <= DIGEST {
        return None;
    }
    let bytes = file.split_off(DIGEST);
    (file[..] == Sha256::digest(&bytes)[..]).then_some(bytes)
}
