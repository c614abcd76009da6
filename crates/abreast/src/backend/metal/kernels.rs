//! Kernels by name: compiled from their text at first use, kept as long as the device.

use super::driver::Driver;
use crate::backend::gpu::constants::defines;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Every kernel file, by its stem.
pub(super) const SOURCES: [(&str, &str); 6] = [
    ("compress", include_str!("compress.metal")),
    ("convert_state", include_str!("convert_state.metal")),
    ("gather_rows", include_str!("gather_rows.metal")),
    ("index_scores", include_str!("index_scores.metal")),
    ("sparse_attention", include_str!("sparse_attention.metal")),
    ("top_k", include_str!("top_k.metal")),
];

/// A kernel file's stem and the function in it.
pub(super) type Name = (&'static str, &'static str);

/// The constants of `dims`, then what all kernels share, then the kernel file.
pub(super) fn source(stem: &str) -> String {
    let (_, kernel) = SOURCES.iter().find(|(name, _)| *name == stem).expect("a kernel of this folder");
    let mut text = defines(|bits| format!("as_type<float>(0x{bits:08x}u)"));
    for (name, part) in
        [("common", include_str!("common.metal")), ("dots", include_str!("dots.metal")), (stem, kernel)]
    {
        text.push_str(&format!("#line 1 \"{name}.metal\"\n{part}"));
    }
    text
}

/// The kernels of one device.
pub(super) struct Kernels<D: Driver> {
    loaded: Mutex<Loaded<D>>,
    /// What is planted, for the suite to find.
    #[cfg(all(test, feature = "metal-harness"))]
    pub(super) defect: crate::backend::gpu::defects::Defect,
}

struct Loaded<D: Driver> {
    libraries: HashMap<&'static str, D::Library>,
    pipelines: HashMap<Name, Arc<D::Pipeline>>,
}

impl<D: Driver> Kernels<D> {
    pub(super) fn new() -> Kernels<D> {
        Kernels {
            loaded: Mutex::new(Loaded { libraries: HashMap::new(), pipelines: HashMap::new() }),
            #[cfg(all(test, feature = "metal-harness"))]
            defect: Default::default(),
        }
    }

    /// A kernel, compiled; the error says what the compiler says.
    pub(super) fn get(&self, driver: &D, (stem, name): Name) -> Result<Arc<D::Pipeline>, String> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = loaded.pipelines.get(&(stem, name)) {
            return Ok(pipeline.clone());
        }
        if !loaded.libraries.contains_key(stem) {
            let text = source(stem);
            #[cfg(all(test, feature = "metal-harness"))]
            let text = self.defect.apply(stem, text);
            loaded.libraries.insert(stem, driver.library(stem, &text)?);
        }
        let pipeline = Arc::new(driver.pipeline(&loaded.libraries[stem], name)?);
        loaded.pipelines.insert((stem, name), pipeline.clone());
        Ok(pipeline)
    }
}
