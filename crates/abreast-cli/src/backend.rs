//! `--backend` and `--method`: which device a command uses, and which arithmetic.

use abreast::{Device, Kind, Method};
use clap::ValueEnum;

/// A backend by the name that people type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    Cpu,
    Cuda,
    Metal,
}

impl BackendName {
    pub(crate) fn open(self) -> Result<Device, String> {
        let kind = match self {
            BackendName::Cpu => Kind::Cpu,
            BackendName::Cuda => Kind::Cuda,
            BackendName::Metal => Kind::Metal,
        };
        Device::open(kind).map_err(|e| e.to_string())
    }
}

/// An arithmetic by the name that people type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MethodName {
    /// The same bits on every CPU and on CUDA
    Reference,
    /// The fastest that the device has
    Fast,
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Method {
        match name {
            MethodName::Reference => Method::Reference,
            MethodName::Fast => Method::Fast,
        }
    }
}
