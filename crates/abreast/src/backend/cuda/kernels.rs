//! Kernels by name: compiled at first use for the device's architecture, kept on disk, loaded once.

use super::cache::Cache;
use super::driver::{Owned, Queue};
use super::nvrtc::{Nvrtc, OPTIONS, Source};
use super::target::{Chip, HOPPER_SHARED};
use crate::backend::gpu::constants::defines;
use crate::backend::gpu::plan::Launch;
use crate::error::{Error, Result};
use cudarc::driver::{CudaFunction, CudaModule, sys};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel, and the most dynamic shared memory that its blocks can have, bytes.
type Ready = (CudaFunction, u32);

/// Kernel files of Hopper's own instructions, by their stems.
pub(super) const HOPPER: &[(&str, &str)] = &[
    (
        "index_scores_hopper",
        concat!(include_str!("index_scores.cuh"), include_str!("index_scores_hopper.cu")),
    ),
    (
        "sparse_attention_alone_hopper",
        concat!(
            include_str!("sparse_attention.cuh"),
            include_str!("sparse_attention_tile.cuh"),
            include_str!("sparse_attention_task.cuh"),
            include_str!("sparse_attention_again.cuh"),
            include_str!("sparse_attention_alone_hopper.cuh"),
            include_str!("sparse_attention_alone_hopper.cu")
        ),
    ),
    (
        "sparse_attention_hopper",
        concat!(
            include_str!("sparse_attention.cuh"),
            include_str!("sparse_attention_tile.cuh"),
            include_str!("sparse_attention_task.cuh"),
            include_str!("sparse_attention_again.cuh"),
            include_str!("sparse_attention_hopper.cuh"),
            include_str!("sparse_attention_hopper_load.cuh"),
            include_str!("sparse_attention_hopper_score.cuh"),
            include_str!("sparse_attention_hopper_sum.cuh"),
            include_str!("sparse_attention_hopper.cu")
        ),
    ),
    (
        "top_k_hopper",
        concat!(
            include_str!("top_k_cluster.cuh"),
            include_str!("top_k_order.cuh"),
            include_str!("top_k_scores.cuh"),
            include_str!("top_k_blocks.cuh"),
            include_str!("top_k_part.cuh"),
            include_str!("top_k_hopper.cu")
        ),
    ),
];

/// Kernel files of every chip, by their stems.
pub(super) const SOURCES: [(&str, &str); 6] = [
    (
        "compress",
        concat!(
            include_str!("compress.cuh"),
            include_str!("compress_overlapped.cuh"),
            include_str!("compress_plain.cuh"),
            include_str!("compress.cu")
        ),
    ),
    ("convert_state", include_str!("convert_state.cu")),
    ("gather_rows", include_str!("gather_rows.cu")),
    ("index_scores", concat!(include_str!("index_scores.cuh"), include_str!("index_scores.cu"))),
    ("sparse_attention", concat!(include_str!("sparse_attention.cuh"), include_str!("sparse_attention.cu"))),
    ("top_k", include_str!("top_k.cu")),
];

/// The constants of `dims`, then what all kernels share, then the kernel file. Hopper's instructions before a file that uses them.
pub(super) fn source(stem: &str) -> Option<String> {
    let (_, kernel) = SOURCES.iter().chain(HOPPER).find(|(name, _)| *name == stem)?;
    let mut text = defines(|bits| format!("__uint_as_float(0x{bits:08x}u)"));
    text.push_str("#line 1 \"common.cuh\"\n");
    text.push_str(include_str!("common.cuh"));
    if HOPPER.iter().any(|(name, _)| *name == stem) {
        text.push_str(&format!("#define HOPPER_SHARED {HOPPER_SHARED}\n#line 1 \"hopper.cuh\"\n"));
        text.push_str(include_str!("hopper.cuh"));
    }
    text.push_str(&format!("#line 1 \"{stem}.cu\"\n{kernel}"));
    Some(text)
}

/// The kernels of one device.
pub(super) struct Kernels {
    architecture: String,
    pub(super) chip: Chip,
    cache: Cache,
    loaded: Owned<Mutex<Loaded>>,
    /// What is planted, for the suite to find.
    #[cfg(test)]
    pub(super) defect: crate::backend::gpu::defects::Defect,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<&'static str, Arc<CudaModule>>,
    functions: HashMap<(&'static str, &'static str), Ready>,
}

impl Kernels {
    pub(super) fn new(queue: &Queue) -> Result<Kernels> {
        let (major, minor) = queue.context.compute_capability().map_err(|e| queue.fault(e))?;
        // Hopper's and later chips' own instructions go by the name with an a.
        use sys::CUdevice_attribute as A;
        let number = |which| queue.context.attribute(which).map_err(|e| queue.fault(e));
        let chip = Chip {
            hopper: (major, minor) == (9, 0),
            shared: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            #[cfg(test)]
            attention: None,
        };
        let suffix = if major >= 9 { "a" } else { "" };
        let architecture = format!("sm_{major}{minor}{suffix}");
        Ok(Kernels {
            architecture,
            chip,
            cache: Cache::of_user(),
            loaded: Owned::new(Mutex::default()),
            #[cfg(test)]
            defect: Default::default(),
        })
    }

    pub(super) fn describe(&self) -> String {
        let compiler = match Nvrtc::get() {
            Ok(nvrtc) => {
                format!("NVRTC {}.{} at {}", nvrtc.version().0, nvrtc.version().1, nvrtc.path.display())
            }
            Err(_) => "no NVRTC".into(),
        };
        format!("{}, {compiler}, kernels kept in {}", self.architecture, self.cache.describe())
    }

    /// The kernels of launches, ready. An error where one wants more shared memory than its blocks can have.
    pub(super) fn of(&self, queue: &Queue, launches: &[Launch]) -> Result<Vec<CudaFunction>> {
        let ready = |&Launch { kernel, shared: wanted, .. }: &Launch| {
            let (function, most) = self.get(queue, kernel)?;
            if wanted <= most {
                return Ok(function);
            }
            let name = kernel.1;
            let why = format!(
                "{name} wants {wanted} bytes of shared memory of a block, which has {most}: the rows are too wide"
            );
            Err(Error::Unavailable { device: queue.id, why })
        };
        launches.iter().map(ready).collect()
    }

    /// A kernel, ready to be launched with as much dynamic shared memory as the chip has, and in clusters of any size.
    fn get(&self, queue: &Queue, kernel: (&'static str, &'static str)) -> Result<Ready> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = loaded.functions.get(&kernel) {
            return Ok(ready.clone());
        }
        let (stem, name) = kernel;
        let module = match loaded.modules.get(stem) {
            Some(module) => module.clone(),
            None => {
                let module = self.module(queue, stem)?;
                loaded.modules.insert(stem, module.clone());
                module
            }
        };
        let function = module.load_function(name).map_err(|e| queue.fault(e))?;
        use sys::CUfunction_attribute_enum as A;
        let fault = |e| queue.fault(e);
        let fixed = function.get_attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).map_err(fault)?;
        let most = self.chip.shared as i32 - fixed;
        function.set_attribute(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most).map_err(fault)?;
        if self.chip.hopper {
            let attribute = A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            function.set_attribute(attribute, 1).map_err(fault)?;
        }
        let ready = (function, most as u32);
        loaded.functions.insert(kernel, ready.clone());
        Ok(ready)
    }

    /// A kernel file's module: what is kept of it, or compiled where that is damaged, or nothing that the driver takes.
    fn module(&self, queue: &Queue, stem: &'static str) -> Result<Arc<CudaModule>> {
        let unavailable = |why: String| Error::Unavailable { device: queue.id, why };
        let nvrtc = Nvrtc::get().map_err(unavailable)?;
        let text = source(stem).expect("a kernel of this folder");
        #[cfg(test)]
        let text = self.defect.apply(stem, text);
        let source = Source { name: stem, text: &text, architecture: &self.architecture };
        let make = || nvrtc.compile(&source, &[]).map(|(code, _)| code).map_err(unavailable);
        let load = |code: &[u8]| {
            let module = queue.context.load_module(Ptx::from_binary(code.to_vec()));
            module.map_err(|e| queue.fault(e))
        };
        self.cache.get_or(&key(&source, &compiler(nvrtc)), make, load)
    }
}

/// All that machine code depends on.
fn key<'a>(source: &Source<'a>, compiler: &'a str) -> [&'a [u8]; 4] {
    [source.text, source.architecture, compiler, env!("CARGO_PKG_VERSION")].map(str::as_bytes)
}

/// The compiler with its version and options.
fn compiler(nvrtc: &Nvrtc) -> String {
    format!("{:?} {OPTIONS:?}", nvrtc.version())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The architectures that every kernel must compile for; the last where this NVRTC knows it.
    const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_89", "sm_90a", "sm_100a"];

    /// Skipped where there is no NVRTC; a failure where ABREAST_REQUIRE_NVRTC demands it.
    #[test]
    fn every_kernel_compiles_without_spills() {
        let nvrtc = match Nvrtc::get() {
            Ok(nvrtc) => nvrtc,
            Err(why) => {
                assert!(std::env::var_os("ABREAST_REQUIRE_NVRTC").is_none(), "{why}");
                return println!("SKIPPED: {why}");
            }
        };
        println!("NVRTC {:?} at {}", nvrtc.version(), nvrtc.path.display());
        for architecture in ARCHITECTURES {
            let own = if architecture == "sm_90a" { HOPPER } else { &[] };
            for &(stem, _) in SOURCES.iter().chain(own) {
                let text = source(stem).expect("listed");
                let made =
                    nvrtc.compile(&Source { name: stem, text: &text, architecture }, &["--ptxas-options=-v"]);
                let (code, log) = match made {
                    Err(why)
                        if architecture == "sm_100a"
                            && why.contains("invalid value for --gpu-architecture") =>
                    {
                        println!("SKIPPED: this NVRTC does not know {architecture}");
                        continue;
                    }
                    made => made.unwrap_or_else(|why| panic!("{why}")),
                };
                assert!(!code.is_empty());
                let spills = log
                    .lines()
                    .filter(|l| l.contains("spill") && !l.contains("0 bytes spill stores, 0 bytes"));
                assert_eq!(spills.count(), 0, "{stem} for {architecture}:\n{log}");
                for line in log.lines().filter(|l| l.contains("Used")) {
                    println!("{architecture} {stem}: {}", line.trim());
                }
            }
        }
    }

    #[test]
    fn code_that_the_driver_refuses_is_compiled_anew() {
        let queue = match Queue::open(0, None) {
            Ok(queue) => queue,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let kernels = Kernels { cache: Cache::at(folder.path()), ..Kernels::new(&queue).expect("kernels") };
        let (nvrtc, text) = (Nvrtc::get().expect("NVRTC"), source("gather_rows").expect("listed"));
        let own = Source { name: "gather_rows", text: &text, architecture: &kernels.architecture };
        let architecture = if own.architecture.starts_with("sm_8") { "sm_90a" } else { "sm_80" };
        // Whole and under this device's name, but for a device that this one does not stand in for.
        let other = nvrtc.compile(&Source { architecture, ..own }, &[]).expect("compiles").0;
        let compiler = compiler(nvrtc);
        let key = key(&own, &compiler);
        kernels.cache.get_or(&key, || Ok::<_, ()>(other.clone()), |_| Ok(())).expect("stored");
        kernels.get(&queue, ("gather_rows", "gather_rows")).expect("a kernel");
        let kept = kernels.cache.get_or(&key, || Err("nothing is kept"), |code| Ok(code.to_vec()));
        assert_ne!(kept.expect("kept"), other);
    }
}
