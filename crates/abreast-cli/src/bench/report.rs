//! The figures of a run.

use super::cases::Case;
use super::ceiling::{Bound, Ceilings, Unit};
use super::machine::Machine;
use super::measure::Measured;
use super::past::Past;
use abreast::Method;
use serde::{Serialize, Serializer};

/// A whole run, as `--json` prints it.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// `fast` or `reference`: of the operations that have a choice.
    #[serde(serialize_with = "lowercase")]
    pub(super) method: Method,
    pub(super) ceilings: Ceilings,
    /// Names of the peers that the results are held against.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<String>,
    pub(super) results: Vec<Record>,
}

/// One operation, shape and number of rows. Times are of one joint call.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Record {
    pub(super) op: &'static str,
    pub(super) shape: String,
    pub(super) rows: usize,
    pub(super) median_us: f64,
    pub(super) p10_us: f64,
    pub(super) p90_us: f64,
    pub(super) samples: usize,
    /// Least work of the call, from `Op::cost`.
    pub(super) flops: u64,
    pub(super) bytes: u64,
    /// What all requests of the measurement hold; calls take turns over them.
    pub(super) data_bytes: usize,
    pub(super) gflops: f64,
    pub(super) gbs: f64,
    /// A loop of solo calls over the same rows.
    pub(super) solo_us: f64,
    /// `solo_us / median_us`.
    pub(super) speedup: f64,
    /// The least time by the lower ceiling, which that is, and how much of it was reached.
    pub(super) floor_us: f64,
    pub(super) bound: Bound,
    pub(super) share: f64,
    #[serde(flatten)]
    pub(super) gpu: Option<GpuRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) baseline: Option<Compared>,
    /// One for each name of the report's `peers`, where that peer has the figure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<Option<Compared>>,
}

/// What a figure has beside on a GPU, where the others are the device's times with cold inputs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GpuRecord {
    /// Bytes that calls touch before inputs come back, and whether these are three times the L2.
    pub(super) turn_bytes: usize,
    pub(super) cold: bool,
    /// The device's time where calls have one set of inputs.
    pub(super) warm_us: f64,
    pub(super) warm_floor_us: f64,
    /// The host's time until a plain call returns, and until the replay of a step that holds the call does.
    pub(super) call_host_us: f64,
    pub(super) replay_host_us: f64,
}

/// Another figure for the same work.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Compared {
    pub(super) median_us: f64,
    /// Our time by its time: below 1 we are faster.
    pub(super) ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) how: Option<String>,
    /// What we want to reach, and what a kernel takes that only reads what the operation must.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) goal_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bare_us: Option<f64>,
}

impl Record {
    pub(super) fn new(
        case: Case,
        (rows, requests): (usize, usize),
        (m, c, method): (&Measured, &Ceilings, Method),
    ) -> Record {
        let seconds = m.joint.median * 1e-6;
        let data_bytes = case.request_bytes() * requests;
        let unit = if method == Method::Fast && case.is_product() { Unit::Matrix } else { Unit::Vector };
        let floor = |bytes| c.floor(m.cost, (bytes, case.traffic(), unit));
        let gpu = m.gpu.map(|gpu| GpuRecord {
            turn_bytes: gpu.turn_bytes,
            cold: gpu.cold,
            warm_us: gpu.warm.median,
            warm_floor_us: floor(m.cost.bytes as usize).0 * 1e6,
            call_host_us: gpu.call_host.median,
            replay_host_us: gpu.replay_host.median,
        });
        let (floor, bound) = floor(gpu.as_ref().map_or(data_bytes, |gpu| gpu.turn_bytes));
        Record {
            op: case.op(),
            shape: case.shape(),
            rows,
            median_us: m.joint.median,
            p10_us: m.joint.p10,
            p90_us: m.joint.p90,
            samples: m.joint.samples,
            flops: m.cost.flops,
            bytes: m.cost.bytes,
            data_bytes,
            gflops: m.cost.flops as f64 / seconds / 1e9,
            gbs: m.cost.bytes as f64 / seconds / 1e9,
            solo_us: m.solo.median,
            speedup: m.solo.median / m.joint.median,
            floor_us: floor * 1e6,
            bound,
            share: floor / seconds,
            gpu,
            baseline: None,
            peers: vec![],
        }
    }

    pub(super) fn compare(&mut self, baseline: Option<&Past>, peers: &[Past]) {
        self.baseline = baseline.and_then(|past| self.compared(past));
        self.peers = peers.iter().map(|past| self.compared(past)).collect();
    }

    fn compared(&self, past: &Past) -> Option<Compared> {
        let then = past.figure((self.op, &self.shape, self.rows))?;
        let ratio = self.median_us / then.median_us;
        let (goal_us, bare_us) = (then.goal_us, then.bare_us);
        let how = then.how.as_deref().map(str::to_owned);
        Some(Compared { median_us: then.median_us, ratio, how, goal_us, bare_us })
    }
}

fn lowercase<S: Serializer>(method: &Method, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{method:?}").to_lowercase())
}
