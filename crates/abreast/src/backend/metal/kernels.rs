//! Kernels by name: compiled from their text at first use, kept as long as the device.

use super::driver::Driver;
use crate::dims::{self, exp, status};
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
    let mut text = String::new();
    let bits = |x: f32| format!("as_type<float>(0x{:08x}u)", x.to_bits());
    let mut define = |name: &str, value: String| text.push_str(&format!("#define {name} {value}\n"));
    define("NO_INDEX", format!("({})", dims::NO_INDEX));
    define("F32_MAX", bits(f32::MAX));
    define("F32_INF", bits(f32::INFINITY));
    define("F32_NAN", bits(f32::NAN));
    define("EXP_LOG2_E", bits(exp::LOG2_E));
    define("EXP_ROUND", bits(exp::ROUND));
    define("EXP_LN2_HIGH", bits(exp::LN2_HIGH));
    define("EXP_LN2_LOW", bits(exp::LN2_LOW));
    define("EXP_LOWEST", bits(exp::LOWEST));
    for (n, c) in exp::COEFFICIENTS.iter().enumerate() {
        define(&format!("EXP_C{n}"), bits(*c));
    }
    for (bit, name) in status::ALL {
        define(name, format!("{bit}u"));
    }
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
    pub(super) defect: super::defects::Defect,
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
