//! Where and with what a report was measured.

use crate::info;
use abreast::{Device, Gpu, Isa, Kind};
use serde::Serialize;
use std::time::SystemTime;

/// The machine, the settings and the day.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) arch: &'static str,
    /// Vector features of the processor that matter here.
    pub(super) features: Vec<&'static str>,
    pub(super) cores: usize,
    pub(super) device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<GpuModel>,
    /// Of the CPU backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) isa: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<usize>,
    /// Of this program.
    pub(super) version: &'static str,
    /// RFC 3339, UTC.
    pub(super) date: String,
}

/// A GPU, as its driver describes it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GpuModel {
    pub(super) name: String,
    pub(super) architecture: String,
    /// The driver's version where the system tells it, and the CUDA version that it speaks.
    pub(super) driver: String,
    pub(super) multiprocessors: u32,
    pub(super) clock_mhz: u32,
    pub(super) l2_bytes: usize,
    pub(super) memory_bytes: usize,
}

impl GpuModel {
    pub(super) fn new(kind: Kind, gpu: Gpu) -> GpuModel {
        let ((major, minor), (version, update)) = (gpu.capability, gpu.driver);
        let (architecture, driver) = match kind {
            Kind::Metal if version == 0 => (String::new(), "none".into()),
            Kind::Metal => (format!("Apple family {major}"), format!("macOS {version}.{update}")),
            _ => {
                let module = driver_module().map_or(String::new(), |version| format!("{version}, "));
                (format!("sm_{major}{minor}"), format!("{module}CUDA {version}.{update}"))
            }
        };
        GpuModel {
            name: gpu.name,
            architecture,
            driver,
            multiprocessors: gpu.multiprocessors,
            clock_mhz: gpu.clock_khz / 1000,
            l2_bytes: gpu.l2_bytes,
            memory_bytes: gpu.memory_bytes,
        }
    }
}

impl Machine {
    /// `cpu` is how the CPU backend works, where that is measured.
    pub(super) fn new(device: &Device, cpu: Option<(Isa, usize)>) -> Machine {
        Machine {
            cpu: info::processor().unwrap_or_else(|| format!("unknown {}", std::env::consts::ARCH)),
            arch: std::env::consts::ARCH,
            features: features(),
            cores: cores(),
            device: device.describe(),
            gpu: device.gpu().map(|gpu| GpuModel::new(device.id().kind, gpu)),
            isa: cpu.map(|(isa, _)| isa.to_string()),
            threads: cpu.map(|(_, threads)| threads),
            version: env!("CARGO_PKG_VERSION"),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }
}

/// Processors that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The version in the first line, `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ...`, of the driver's own file.
fn driver_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let words = text.lines().next()?.split_whitespace();
    words
        .into_iter()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => { [$(($name, is_x86_feature_detected!($name))),*] };
    }
    let all =
        present!("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16");
    all.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    if Isa::Neon.is_available() { vec!["neon"] } else { vec![] }
}
