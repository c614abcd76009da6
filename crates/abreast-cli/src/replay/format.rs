//! `manifest.json` and `edge.json` as they stand: names and numbers, nothing looked up yet.

use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

/// One JSON file: which safetensors it names, its cases and its groups.
#[derive(Debug)]
pub struct Manifest {
    /// Names of safetensors files beside it.
    pub files: Vec<String>,
    /// The recorded calls.
    pub cases: Vec<Case>,
    /// Which cases ran as one step. A file without groups leaves that to the reader.
    pub groups: Option<Vec<Group>>,
}

/// Cases that ran as one joint step, by their ids.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub id: String,
    /// Ids of its cases.
    pub cases: Vec<String>,
}

/// One recorded call. Names of inputs and outputs lead to names of tensors.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// Its name, unique in the file.
    pub id: String,
    /// Who computed the expected results.
    #[serde(default)]
    pub source: String,
    /// How the model ran; `hfbf16` loosens a compressor's tolerance.
    #[serde(default)]
    pub mode: String,
    /// Logical name of an input -> tensor.
    pub inputs: BTreeMap<String, String>,
    /// Logical name of an output -> tensor, or `zeros`.
    pub outputs: BTreeMap<String, String>,
    /// Input -> (flat index, raw bits) written over a copy of the tensor before the call.
    #[serde(default)]
    pub patches: BTreeMap<String, Vec<(u64, u64)>>,
    /// What is called, and with which numbers.
    #[serde(flatten)]
    pub core: Core,
}

/// What is called, with the numbers of each kind of case.
#[derive(Debug, Deserialize)]
#[serde(tag = "core", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Core {
    SparseAttention(SparseAttention),
    Indexer(Indexer),
    Compressor(Compressor),
}

/// Attention over the first `kv_len` rows of a cache.
#[derive(Debug, Deserialize)]
#[allow(missing_docs)]
pub struct SparseAttention {
    pub kv_len: usize,
    pub width: usize,
    pub scale: f32,
    /// Heads that must be zero although the recorded output has values there.
    #[serde(default)]
    pub zero_heads: Vec<usize>,
}

/// Selection of the `top_k` best of `n_keys` keys.
#[derive(Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Indexer {
    pub pos: u32,
    pub ratio: u32,
    pub n_keys: usize,
    pub valid_count: usize,
    pub top_k: usize,
    #[serde(default)]
    pub offset: i32,
}

/// Consecutive tokens through a compressor.
#[derive(Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Compressor {
    pub start_pos: u32,
    pub tokens: usize,
    pub ratio: u32,
    pub coff: usize,
    pub head_dim: usize,
    pub eps: f32,
    /// Tokens that close a block; they follow from the position and are only checked.
    pub emitted_at: Option<Vec<usize>>,
    /// Tokens whose block must fail closed: a zero row and a status.
    #[serde(default)]
    pub fail_closed_at: Vec<usize>,
}

/// The JSON before each case is known to have an id.
#[derive(Deserialize)]
struct Raw {
    files: Vec<String>,
    cases: Vec<serde_json::Value>,
    groups: Option<Vec<RawGroup>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a group must be {\"id\": .., \"cases\": [ids]} or a list of ids")]
enum RawGroup {
    Named { id: String, cases: Vec<String> },
    Bare(Vec<String>),
}

impl Manifest {
    /// Reads the JSON. An error is one line that names the case and the field, without the file's name.
    pub fn parse(json: &[u8]) -> Result<Manifest, String> {
        let raw: Raw = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let cases = raw.cases.into_iter().enumerate().map(|(n, value)| case(n, value));
        let cases = cases.collect::<Result<Vec<Case>, String>>()?;
        let mut ids = HashSet::new();
        if let Some(case) = cases.iter().find(|case| !ids.insert(case.id.as_str())) {
            return Err(format!("case {}: id must be unique, got it twice", case.id));
        }
        let groups: Option<Vec<Group>> =
            raw.groups.map(|groups| groups.into_iter().enumerate().map(group).collect());
        let group_ids = groups.iter().flatten().map(|group| &group.id);
        // They are printed in tables.
        let ids = cases.iter().map(|case| &case.id).chain(group_ids);
        if let Some(id) = ids.into_iter().find(|id| id.chars().any(char::is_control)) {
            return Err(format!("id must be without control characters, got {id:?}"));
        }
        Ok(Manifest { files: raw.files, cases, groups })
    }
}

fn case(n: usize, value: serde_json::Value) -> Result<Case, String> {
    let name = match value.get("id").and_then(|id| id.as_str()) {
        Some(id) => format!("case {id}"),
        None => format!("cases[{n}]"),
    };
    serde_json::from_value(value).map_err(|e| format!("{name}: {e}"))
}

fn group((n, raw): (usize, RawGroup)) -> Group {
    match raw {
        RawGroup::Named { id, cases } => Group { id, cases },
        RawGroup::Bare(cases) => Group { id: format!("groups[{n}]"), cases },
    }
}
