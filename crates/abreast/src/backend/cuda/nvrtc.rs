//! NVIDIA's run-time compiler, found at run time: kernels become machine code for the device's own architecture.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

type Program = *mut c_void;
type Code = c_int;

/// The functions that are used of it.
pub(super) struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    code_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    code: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    destroy: unsafe extern "C" fn(*mut Program) -> Code,
    /// Where it was found.
    pub(super) path: PathBuf,
}

/// A kernel to compile.
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    /// `sm_90a`, say.
    pub(super) architecture: &'a str,
}

const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// Every kernel's. No multiplication and addition is fused that the source does not fuse.
pub(super) const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// What to do where it is missing.
pub(super) const HELP: &str = "install it with `pip install nvidia-cuda-nvrtc`, or the CUDA toolkit, or set ABREAST_NVRTC to the \
                               path of libnvrtc.so";

impl Nvrtc {
    /// The library, loaded once; the error says where it was looked for.
    pub(super) fn get() -> Result<&'static Nvrtc, String> {
        static LOADED: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        LOADED.get_or_init(Nvrtc::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Nvrtc, String> {
        let mut failures = Vec::new();
        for path in candidates() {
            if path.is_absolute() && !path.exists() {
                continue;
            }
            load_builtins(&path);
            // SAFETY: loading NVIDIA's library runs its initialisers, which are made for that.
            let loaded =
                unsafe { Library::new(&path) }.and_then(|library| Nvrtc::bind(library, path.clone()));
            match loaded {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(e) => failures.push(format!("{}: {e}", path.display())),
            }
        }
        Err(format!("no NVRTC was found ({}); {HELP}", failures.join("; ")))
    }

    fn bind(library: Library, path: PathBuf) -> Result<Nvrtc, libloading::Error> {
        // Never unloaded: the functions are called until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field's type is the function's, as NVIDIA's header declares it.
                *unsafe { library.get(concat!($name, "\0").as_bytes())? }
            };
        }
        Ok(Nvrtc {
            version: function!("nvrtcVersion"),
            create: function!("nvrtcCreateProgram"),
            compile: function!("nvrtcCompileProgram"),
            log_size: function!("nvrtcGetProgramLogSize"),
            log: function!("nvrtcGetProgramLog"),
            code_size: function!("nvrtcGetCUBINSize"),
            code: function!("nvrtcGetCUBIN"),
            destroy: function!("nvrtcDestroyProgram"),
            path,
        })
    }

    /// Major and minor number.
    pub(super) fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { (self.version)(&mut major, &mut minor) };
        (major, minor)
    }

    /// Machine code, and what the compiler said.
    pub(super) fn compile(&self, source: &Source<'_>, options: &[&str]) -> Result<(Vec<u8>, String), String> {
        let c = |s: &str| CString::new(s).map_err(|e| e.to_string());
        let (text, name) = (c(source.text)?, c(&format!("{}.cu", source.name))?);
        let architecture = format!("--gpu-architecture={}", source.architecture);
        let options = [&[architecture.as_str()], &OPTIONS[..], options].concat();
        let options = options.iter().map(|o| c(o)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: the strings live until the program is destroyed; sizes are asked for before buffers are filled.
        unsafe {
            let none = std::ptr::null();
            let code = (self.create)(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none);
            if code != 0 {
                return Err(format!("nvrtcCreateProgram returned {code}"));
            }
            let code = (self.compile)(program, options.len() as c_int, options.as_ptr());
            let log = read(|n| (self.log_size)(program, n), |p| (self.log)(program, p));
            let log = CStr::from_bytes_until_nul(&log)
                .map(|l| l.to_string_lossy().into_owned())
                .unwrap_or_default();
            let binary = read(|n| (self.code_size)(program, n), |p| (self.code)(program, p));
            (self.destroy)(&mut program);
            if code != 0 || binary.is_empty() {
                return Err(format!(
                    "{}.cu for {}: nvrtc error {code}: {log}",
                    source.name, source.architecture
                ));
            }
            Ok((binary, log))
        }
    }
}

fn read(size: impl Fn(*mut usize) -> Code, fill: impl Fn(*mut c_char) -> Code) -> Vec<u8> {
    let mut n = 0;
    if size(&mut n) != 0 {
        return Vec::new();
    }
    let mut bytes = vec![0u8; n];
    if fill(bytes.as_mut_ptr().cast()) == 0 { bytes } else { Vec::new() }
}

/// pip's wheel has no run path to its own builtins: they are loaded first, by absolute path.
fn load_builtins(nvrtc: &std::path::Path) {
    let Some(folder) = nvrtc.parent().filter(|_| nvrtc.is_absolute()) else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins") {
            // SAFETY: as for the library itself.
            if let Ok(library) = unsafe { Library::new(entry.path()) } {
                std::mem::forget(library);
            }
        }
    }
}

/// Where it may be, in the order of preference.
fn candidates() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut found: Vec<PathBuf> = var("ABREAST_NVRTC").into_iter().collect();
    found.extend(NAMES.map(PathBuf::from));
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(var).collect();
    roots.extend(children("/usr/local", "cuda"));
    for root in roots {
        for folder in ["lib64", "lib", "targets/x86_64-linux/lib"] {
            found.extend(NAMES.map(|name| root.join(folder).join(name)));
        }
    }
    // The active Python's packages: a virtual environment, or the python3 that comes first.
    let mut environments: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(var).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let bins = std::env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    environments.extend(bins.filter_map(|bin| bin.parent().map(PathBuf::from)));
    for environment in environments {
        for python in children(environment.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                for folder in ["cu13/lib", "cuda_nvrtc/lib"] {
                    found.extend(NAMES.map(|name| nvidia.join(folder).join(name)));
                }
            }
        }
    }
    found
}

/// Entries of a folder whose names start so.
fn children(folder: impl Into<PathBuf>, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.into()).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_string_lossy().starts_with(start)).map(|e| e.path()).collect();
    paths.sort();
    paths
}
