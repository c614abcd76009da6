//! Earlier figures, ours or a peer's, to hold new ones against: reports, or tables of several peers' figures.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

/// No report is as large as this.
const MOST_BYTES: u64 = 64 << 20;

/// What a time can be, in microseconds. A plot's axis counts the powers of two between its ends one by one, and has no end
/// where their ratio is more than `f64` holds.
const TIMES: std::ops::RangeInclusive<f64> = 1e-12..=1e12;

/// What a comparison needs of a report: of `abreast bench --json`, of a tool in `tools/peers`, or a table.
#[derive(Debug, Deserialize)]
pub(crate) struct Past {
    /// Whose figures they are.
    #[serde(default = "nobody")]
    pub(crate) name: Line,
    pub(crate) machine: Setting,
    pub(crate) method: Option<Line>,
    pub(crate) results: Vec<Figure>,
}

fn nobody() -> Line {
    Line("peer".into())
}

/// A text of a report, safe to print: others wrote it, and a terminal obeys control characters.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(from = "String")]
pub(crate) struct Line(String);

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
pub(crate) struct Setting {
    pub(crate) cpu: Line,
    pub(crate) threads: Option<usize>,
    pub(crate) gpu: Option<GpuName>,
    pub(crate) version: Option<Line>,
    pub(crate) date: Option<Line>,
}

/// The GPU that was measured.
#[derive(Debug, Deserialize)]
pub(crate) struct GpuName {
    pub(crate) name: Line,
}

/// One figure.
#[derive(Debug, Deserialize)]
pub(crate) struct Figure {
    pub(crate) op: Line,
    pub(crate) shape: Line,
    pub(crate) rows: usize,
    pub(crate) median_us: f64,
    /// How a peer did it.
    pub(crate) how: Option<Line>,
    /// Ours alone: with warm inputs, and the least time by the machine's ceilings.
    pub(crate) warm_us: Option<f64>,
    pub(crate) floor_us: Option<f64>,
    /// Of a table: what we want to reach, and what a kernel takes that only reads what the operation must.
    pub(crate) goal_us: Option<f64>,
    pub(crate) bare_us: Option<f64>,
}

/// A line of a table of peers: one of them may have several figures, and of the same work the best counts.
#[derive(Debug, Deserialize)]
struct Entry {
    gpu: Line,
    op: Line,
    shape: Line,
    rows: usize,
    peer: Line,
    us: f64,
    goal_us: Option<f64>,
    bare_us: Option<f64>,
}

impl Past {
    /// Reads a report, or a table where the name ends in `.csv`; the error is one line.
    pub(crate) fn read(path: &Path) -> Result<Past, String> {
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
        let table = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"));
        if table { Past::parse_table(&json) } else { Past::parse(&json) }.map_err(named)
    }

    fn parse(json: &[u8]) -> Result<Past, String> {
        let past: Past = serde_json::from_slice(json).map_err(|e| format!("not a report of figures: {e}"))?;
        past.checked("median_us")
    }

    /// Lines of [`Entry`] under their names; `#` starts a comment.
    fn parse_table(text: &[u8]) -> Result<Past, String> {
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(text);
        let mut best: BTreeMap<(Line, Line, usize), Figure> = BTreeMap::new();
        let mut gpu = None;
        for entry in reader.deserialize() {
            let e: Entry = entry.map_err(|e| format!("not a table of figures: {e}"))?;
            gpu.get_or_insert(GpuName { name: e.gpu });
            let (key, how) = ((e.op.clone(), e.shape.clone(), e.rows), Some(e.peer));
            let slot = best.entry(key).or_insert_with(|| Figure {
                op: e.op,
                shape: e.shape,
                rows: e.rows,
                median_us: f64::INFINITY,
                how: None,
                warm_us: None,
                floor_us: None,
                goal_us: None,
                bare_us: None,
            });
            // What is no number is refused below.
            if e.us < slot.median_us || e.us.is_nan() {
                (slot.median_us, slot.how) = (e.us, how);
            }
            slot.goal_us = slot.goal_us.or(e.goal_us);
            slot.bare_us = slot.bare_us.or(e.bare_us);
        }
        let machine = Setting { cpu: Line(String::new()), threads: None, gpu, version: None, date: None };
        Past { name: Line("best peer".into()), machine, method: None, results: best.into_values().collect() }
            .checked("us")
    }

    /// Whether device, method and version are the same.
    pub(crate) fn is_of_the_run_of(&self, other: &Past) -> bool {
        let setting = |past: &'_ Past| {
            let m = &past.machine;
            (m.gpu.as_ref().map(|gpu| gpu.name.clone()), m.cpu.clone(), m.threads, m.version.clone())
        };
        setting(self) == setting(other) && self.method == other.method
    }

    /// `median` is the median's name in the file.
    fn checked(self, median: &str) -> Result<Past, String> {
        for f in &self.results {
            let times = [
                (median, Some(f.median_us)),
                ("warm_us", f.warm_us),
                ("floor_us", f.floor_us),
                ("goal_us", f.goal_us),
                ("bare_us", f.bare_us),
            ];
            let wrong = |&(_, us): &(&str, Option<f64>)| us.is_some_and(|us| !TIMES.contains(&us));
            if let Some((time, Some(us))) = times.into_iter().find(wrong) {
                let (op, shape, rows) = (&*f.op, &*f.shape, f.rows);
                let (least, most) = (TIMES.start(), TIMES.end());
                return Err(format!(
                    "{op} {shape} rows {rows}: {time} must be {least:e} to {most:e}, got {us:e}"
                ));
            }
        }
        Ok(self)
    }

    pub(crate) fn figure(&self, (op, shape, rows): (&str, &str, usize)) -> Option<&Figure> {
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
                "top_k n 2048 random rows 8: median_us must be 1e-12 to 1e12, got 0e0",
            ),
            (&GOOD.replace("12.5", "-1"), "median_us must be 1e-12 to 1e12, got -1e0"),
            (&GOOD.replace("12.5", "1e-310"), "got 1e-310"),
            (&GOOD.replace("12.5", "1e308"), "got 1e308"),
            (
                &GOOD.replace("share\": 1", "warm_us\": 1e306"),
                "rows 8: warm_us must be 1e-12 to 1e12, got 1e306",
            ),
            (&GOOD.replace("share\": 1", "floor_us\": 1.1e12"), "rows 8: floor_us must be"),
            (&GOOD.replace("share\": 1", "floor_us\": 9e-13"), "rows 8: floor_us must be"),
            (&GOOD.replace("12.5", "-1e400"), "number out of range"),
            (&GOOD.replace("12.5", "\"fast\""), "invalid type"),
        ];
        for (text, want) in cases {
            let error = Past::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(want) && !error.contains('\n'), "{text}: {error}");
        }
    }

    const TABLE: &str = "# measured long ago\ngpu,op,shape,rows,peer,us,goal_us,bare_us\n\
        NVIDIA H200,top_k,n 2048 random,8,CUB,10.5,2.8,1.7\nNVIDIA H200,top_k,n 2048 random,8,SGLang,3.0,,\n";

    #[test]
    fn of_a_table_the_best_peer_counts() {
        let past = Past::parse_table(TABLE.as_bytes()).unwrap();
        let figure = past.figure(("top_k", "n 2048 random", 8)).unwrap();
        assert_eq!((figure.median_us, figure.how.as_deref()), (3.0, Some("SGLang")));
        assert_eq!((figure.goal_us, figure.bare_us), (Some(2.8), Some(1.7)));
        assert_eq!(&*past.machine.gpu.unwrap().name, "NVIDIA H200");
        for (from, to, want) in [
            ("3.0", "NaN", "rows 8: us must be 1e-12 to 1e12, got NaN"),
            ("3.0", "0", "rows 8: us must be"),
            ("2.8", "-1", "rows 8: goal_us must be"),
            ("1.7", "inf", "rows 8: bare_us must be"),
            ("random,8,SGLang,3.0", "random,1,SGLang,inf", "rows 1: us must be 1e-12 to 1e12, got inf"),
            (",us,", ",x,", "missing field `us`"),
        ] {
            let bad = TABLE.replace(from, to);
            let error = Past::parse_table(bad.as_bytes()).unwrap_err();
            assert!(error.contains(want) && !error.contains('\n'), "{bad}: {error}");
        }
    }

    /// The table that ships, over shapes that are measured.
    #[test]
    fn the_shipped_table_is_of_our_cases() {
        let past =
            Past::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/peers/h200.csv")).unwrap();
        let cases = super::super::cases::Case::all();
        for f in &past.results {
            let known = cases.iter().any(|case| case.op() == &*f.op && case.shape() == *f.shape);
            assert!(known, "{} {}", &*f.op, &*f.shape);
            assert!(f.goal_us.is_none_or(|goal| goal < f.median_us), "{} {} {}", &*f.op, &*f.shape, f.rows);
        }
        assert!(past.results.len() > 60);
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
