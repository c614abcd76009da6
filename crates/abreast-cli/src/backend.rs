//! `--backend`: which device a command uses.

use abreast::{Device, Kind};
use clap::ValueEnum;

/// A backend by the name that people type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    Cpu,
    Cuda,
}

impl BackendName {
    pub(crate) fn open(self) -> Result<Device, String> {
        let kind = match self {
            BackendName::Cpu => Kind::Cpu,
            BackendName::Cuda => Kind::Cuda,
        };
        Device::open(kind).map_err(|e| e.to_string())
    }
}
