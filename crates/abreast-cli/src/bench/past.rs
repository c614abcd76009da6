//! Earlier figures, ours or a peer's, to hold new ones against.

use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

/// No report is as large as this.
const MOST_BYTES: u64 = 64 << 20;

/// What a comparison needs of a report: of `abreast bench --json`, or of a tool in `tools/peers`.
#[derive(Debug, Deserialize)]
pub(super) struct Past {
    /// Whose figures they are.
    #[serde(default = "nobody")]
    pub(super) name: Line,
    pub(super) machine: Setting,
    pub(super) results: Vec<Figure>,
}

fn nobody() -> Line {
    Line("peer".into())
}

/// A text of a report, safe to print: others wrote it, and a terminal obeys control characters.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub(super) struct Line(String);

impl From<String> for Line {
    fn from(text: String) -> Line {
        Line(text.replace(char::is_control, " "))
    }
}

impl Deref for Line {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// What should be alike for a comparison to mean something.
#[derive(Debug, Deserialize)]
pub(super) struct Setting {
    pub(super) cpu: Line,
    pub(super) threads: Option<usize>,
    pub(super) gpu: Option<GpuName>,
}

/// The GPU that was measured.
#[derive(Debug, Deserialize)]
pub(super) struct GpuName {
    pub(super) name: Line,
}

/// One figure.
#[derive(Debug, Deserialize)]
pub(super) struct Figure {
    op: Line,
    shape: Line,
    rows: usize,
    pub(super) median_us: f64,
    /// How a peer did it.
    pub(super) how: Option<Line>,
}

impl Past {
    /// Reads a report; the error is one line.
    pub(super) fn read(path: &Path) -> Result<Past, String> {
        let named = |what: String| format!("{}: {what}", path.display());
        // Opening a pipe would wait for ever.
        if !std::fs::metadata(path).map_err(|e| named(e.to_string()))?.is_file() {
            return Err(named("must be a file".into()));
        }
        let file = File::open(path).map_err(|e| named(e.to_string()))?;
        let mut json = Vec::new();
        // The files of /proc do not tell their size: what counts is what is read.
        file.take(MOST_BYTES + 1).read_to_end(&mut json).map_err(|e| named(e.to_string()))?;
        if json.len() as u64 > MOST_BYTES {
            return Err(named(format!("must be at most {MOST_BYTES} bytes")));
        }
        Past::parse(&json).map_err(named)
    }

    fn parse(json: &[u8]) -> Result<Past, String> {
        let past: Past = serde_json::from_slice(json).map_err(|e| format!("not a report of figures: {e}"))?;
        let wrong = past.results.iter().find(|f| !(f.median_us.is_normal() && f.median_us > 0.0));
        match wrong {
            Some(Figure { op: Line(op), shape: Line(shape), rows, .. }) => {
                Err(format!("{op} {shape} rows {rows}: median_us must be a normal positive number"))
            }
            None => Ok(past),
        }
    }

    pub(super) fn figure(&self, (op, shape, rows): (&str, &str, usize)) -> Option<&Figure> {
        self.results.iter().find(|f| *f.op == *op && *f.shape == *shape && f.rows == rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"machine": {"cpu": "c", "threads": 2, "more": 1}, "results":
        [{"op": "top_k", "shape": "n 2048 random", "rows": 8, "median_us": 12.5, "share": 1}]}"#;

    #[test]
    fn figures_are_found_by_operation_shape_and_rows() {
        let past = Past::parse(GOOD.as_bytes()).unwrap();
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
            (
                &GOOD.replace("12.5", "0"),
                "top_k n 2048 random rows 8: median_us must be a normal positive number",
            ),
            (&GOOD.replace("12.5", "-1"), "median_us must be a normal"),
            (&GOOD.replace("12.5", "1e-310"), "median_us must be a normal"),
            (&GOOD.replace("12.5", "-1e400"), "number out of range"),
            (&GOOD.replace("12.5", "\"fast\""), "invalid type"),
        ];
        for (text, want) in cases {
            let error = Past::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(want) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn control_characters_become_spaces() {
        let text = GOOD.replace("\"c\"", "\"c\\u001b[31m\\nd\\u009b\"").replace("n 2048", "n\\t2048");
        let past = Past::parse(text.as_bytes()).unwrap();
        assert_eq!((&*past.machine.cpu, &*past.results[0].shape), ("c [31m d ", "n 2048 random"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Past::read(Path::new("no/such.json")).unwrap_err();
        assert!(error.starts_with("no/such.json: "), "{error}");
    }
}
