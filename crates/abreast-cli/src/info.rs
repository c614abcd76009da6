//! `abreast info`: the version, the processor, and what each backend of this build can do here.

use crate::{CommandResult, Outcome};
use abreast::{
    Compress, ConvertState, Device, GatherRows, IndexScores, Isa, Kind, Op, SelectKeys, SparseAttention, TopK,
};
use serde::Serialize;
use std::fmt::Write;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// One JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info {
    version: &'static str,
    target: String,
    processor: Option<String>,
    threads: usize,
    /// Of the machine; null where the system does not tell.
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    instruction_sets: Vec<InstructionSet>,
    backends: Vec<Backend>,
}

#[derive(Serialize)]
struct InstructionSet {
    name: String,
    available: bool,
    used: bool,
}

#[derive(Serialize)]
struct Backend {
    kind: String,
    available: bool,
    /// What it computes with, or why it is not available.
    about: String,
    operations: Vec<&'static str>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        processor: processor(),
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        memory_bytes: proc_bytes("/proc/meminfo", "MemTotal").or_else(|| sysctl("hw.memsize")?.parse().ok()),
        memory_available_bytes: proc_bytes("/proc/meminfo", "MemAvailable"),
        instruction_sets: Isa::ALL.into_iter().map(instruction_set).collect(),
        backends: [Kind::Cpu, Kind::Cuda, Kind::Metal].into_iter().map(backend).collect(),
    };
    let json =
        || serde_json::to_string_pretty(&info).map(|json| json + "\n").map_err(|e| format!("json: {e}"));
    crate::print(&if args.json { json()? } else { info.text() })?;
    Ok(Outcome::Good)
}

fn instruction_set(isa: Isa) -> InstructionSet {
    InstructionSet { name: isa.to_string(), available: isa.is_available(), used: isa == Isa::best() }
}

fn backend(kind: Kind) -> Backend {
    let name = format!("{kind:?}").to_lowercase();
    match Device::open(kind) {
        Ok(device) => Backend {
            kind: name,
            available: true,
            about: device.describe(),
            operations: vec![
                SparseAttention::NAME,
                IndexScores::NAME,
                TopK::NAME,
                SelectKeys::NAME,
                Compress::NAME,
                ConvertState::NAME,
                GatherRows::NAME,
            ],
        },
        Err(e) => Backend { kind: name, available: false, about: e.to_string(), operations: Vec::new() },
    }
}

impl Info {
    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<12} {value}");
        };
        line("abreast", format!("{}, {}", self.version, self.target));
        line("processor", self.processor.clone().unwrap_or("unknown".into()));
        line("threads", self.threads.to_string());
        let gib = |bytes: Option<u64>| {
            bytes.map_or("unknown".into(), |b| format!("{:.1} GiB", b as f64 / 1073741824.0))
        };
        line("memory", format!("{}, {} available", gib(self.memory_bytes), gib(self.memory_available_bytes)));
        let sets = self.instruction_sets.iter().map(|set| match set {
            InstructionSet { used: true, .. } => format!("{} (used)", set.name),
            InstructionSet { available: true, .. } => set.name.clone(),
            _ => format!("{} (not here)", set.name),
        });
        line(
            "vectors",
            sets.collect::<Vec<String>>().join(", ") + "; the bits are the same with all of them",
        );
        for backend in &self.backends {
            line(&backend.kind, backend.about.clone());
            if backend.available {
                line("", backend.operations.join(", "));
            }
        }
        text
    }
}

/// The processor's model, where the system tells.
pub(crate) fn processor() -> Option<String> {
    proc_field("/proc/cpuinfo", "model name").or_else(|| sysctl("machdep.cpu.brand_string"))
}

/// What macOS tells.
fn sysctl(name: &str) -> Option<String> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Most memory that this process has held at once, where the system tells.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    proc_bytes("/proc/self/status", "VmHWM")
}

/// A field of a Linux /proc file, `name : value` a line.
fn proc_field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| field.trim() == name).map(|(_, value)| value.trim().to_string()).next()
}

/// Such a field in kB, as bytes.
fn proc_bytes(path: &str, name: &str) -> Option<u64> {
    proc_field(path, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
