//! Where and with what a report was measured.

use abreast::{Device, Isa};
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
    pub(super) isa: String,
    pub(super) threads: usize,
    /// Of this program.
    pub(super) version: &'static str,
    /// RFC 3339, UTC.
    pub(super) date: String,
}

impl Machine {
    pub(super) fn new(device: &Device, isa: Isa, threads: usize) -> Machine {
        Machine {
            cpu: cpu_model().unwrap_or_else(|| format!("unknown {}", std::env::consts::ARCH)),
            arch: std::env::consts::ARCH,
            features: features(),
            cores: cores(),
            device: device.describe(),
            isa: isa.to_string(),
            threads,
            version: env!("CARGO_PKG_VERSION"),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }
}

/// Processors that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Linux tells; elsewhere the report does without.
fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim().to_owned())
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
