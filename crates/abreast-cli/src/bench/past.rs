//! Earlier figures, ours or a peer's, to hold new ones against.

use serde::Deserialize;
use std::path::Path;

/// No report is as large as this.
const MOST_BYTES: u64 = 64 << 20;

/// What a comparison needs of a report: of `abreast bench --json`, or of a tool in `tools/peers`.
#[derive(Debug, Deserialize)]
pub(super) struct Past {
    /// Whose figures they are.
    #[serde(default = "nobody")]
    pub(super) name: String,
    pub(super) machine: Setting,
    pub(super) results: Vec<Figure>,
}

fn nobody() -> String {
    "peer".into()
}

/// What should be alike for a comparison to mean something.
#[derive(Debug, Deserialize)]
pub(super) struct Setting {
    pub(super) cpu: String,
    pub(super) threads: Option<usize>,
    pub(super) gpu: Option<GpuName>,
}

/// The GPU that was measured.
#[derive(Debug, Deserialize)]
pub(super) struct GpuName {
    pub(super) name: String,
}

/// One figure.
#[derive(Debug, Deserialize)]
pub(super) struct Figure {
    op: String,
    shape: String,
    rows: usize,
    pub(super) median_us: f64,
    /// How a peer did it.
    pub(super) how: Option<String>,
}

impl Past {
    /// Reads a report; the error is one line.
    pub(super) fn read(path: &Path) -> Result<Past, String> {
        let named = |what: String| format!("{}: {what}", path.display());
        let size = std::fs::metadata(path).map_err(|e| named(e.to_string()))?.len();
        if size > MOST_BYTES {
            return Err(named(format!("{size} bytes is too large for a report of figures")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
        Past::parse(&text).map_err(named)
    }

    fn parse(text: &str) -> Result<Past, String> {
        let past: Past = serde_json::from_str(text).map_err(|e| format!("not a report of figures: {e}"))?;
        let wrong = past.results.iter().find(|f| !(f.median_us.is_finite() && f.median_us > 0.0));
        match wrong {
            Some(f) => Err(format!("{} {} rows {}: median_us must be positive", f.op, f.shape, f.rows)),
            None => Ok(past),
        }
    }

    pub(super) fn figure(&self, (op, shape, rows): (&str, &str, usize)) -> Option<&Figure> {
        self.results.iter().find(|f| f.op == op && f.shape == shape && f.rows == rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"machine": {"cpu": "c", "threads": 2, "more": 1}, "results":
        [{"op": "top_k", "shape": "n 2048 random", "rows": 8, "median_us": 12.5, "share": 1}]}"#;

    #[test]
    fn figures_are_found_by_operation_shape_and_rows() {
        let past = Past::parse(GOOD).unwrap();
        assert_eq!(past.figure(("top_k", "n 2048 random", 8)).map(|f| f.median_us), Some(12.5));
        assert!(past.figure(("top_k", "n 2048 random", 1)).is_none());
        assert!(past.figure(("top_k", "n 2048 equal", 8)).is_none());
    }

    #[test]
    fn a_broken_report_is_one_clear_line() {
        let cases = [
            ("", "EOF"),
            ("[1, 2", "not a report"),
            (r#"{"machine": {"cpu": "c", "threads": 2}}"#, "missing field `results`"),
            (&GOOD.replace("12.5", "0"), "top_k n 2048 random rows 8: median_us must be positive"),
            (&GOOD.replace("12.5", "-1e400"), "number out of range"),
            (&GOOD.replace("12.5", "\"fast\""), "invalid type"),
        ];
        for (text, want) in cases {
            let error = Past::parse(text).unwrap_err();
            assert!(error.contains(want) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Past::read(Path::new("no/such.json")).unwrap_err();
        assert!(error.starts_with("no/such.json: "), "{error}");
    }
}
