//! `abreast bench`: how fast every operation is here, and how close to what the machine can do.

mod cases;
mod ceiling;
mod gpu;
mod inputs;
mod loops;
mod machine;
mod measure;
pub(crate) mod past;
mod report;
mod steps;
mod table;
mod target;

use crate::backend::{BackendName, MethodName};
use crate::{CommandResult, Outcome};
use abreast::Isa;
use cases::Case;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use machine::Machine;
use past::Past;
use report::{Record, Report};
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use table::significant;
use target::Target;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to run
    #[arg(long, value_enum, default_value = "cpu")]
    backend: BackendName,
    /// Only operations and shapes whose name contains this, such as `top_k` or "attention width 640"
    #[arg(long, value_name = "TEXT")]
    op: Option<String>,
    /// Arithmetic of the operations that have a choice
    #[arg(long, value_enum, default_value = "reference")]
    method: MethodName,
    /// Rows of a call [default: 1,2,4,8,16,32 on the CPU and 1,8,32,128 on a GPU, fewer for the largest shapes]
    #[arg(long, value_delimiter = ',', value_name = "N,N", value_parser = count())]
    rows: Vec<usize>,
    /// Threads of the CPU, at most 4 per core [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Instruction set of the CPU [default: the widest]
    #[arg(long, value_parser = isa())]
    isa: Option<Isa>,
    /// About how long to measure each figure
    #[arg(long, default_value_t = 0.5, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,
    /// Compare with an earlier report of `abreast bench --json`
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Compare with peers: reports such as that of tools/peers/torch_cpu.py, or tables such as data/peers/h200.csv, which may have
    /// goals too
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',')]
    peers: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn count() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(1..=1024)
}

fn isa() -> impl TypedValueParser<Value = Isa> {
    let named = |name: String| Isa::ALL.into_iter().find(|isa| isa.to_string() == name);
    PossibleValuesParser::new(["portable", "neon", "avx2", "avx512"])
        .map(move |name| named(name).unwrap_or(Isa::Portable))
}

/// More than a few per core only wait for each other, and thousands may be more than the system starts.
fn threads(text: &str) -> Result<usize, String> {
    let most = 4 * machine::cores();
    let why = || format!("must be 1 to {most}, 4 times the cores of this machine");
    text.parse().ok().filter(|n| (1..=most).contains(n)).ok_or_else(why)
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.0..=60.0).contains(s)).ok_or_else(|| "must be 0 to 60".into())
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cases = chosen(&args)?;
    let baseline = args.baseline.as_deref().map(Past::read).transpose()?;
    let peers = args.peers.iter().map(|path| Past::read(path)).collect::<Result<Vec<_>, _>>()?;
    let text = |e: abreast::Error| e.to_string();
    let target = Target::open(&args)?;
    let machine = target.machine();
    peers.iter().for_each(|past| warn_if_unlike(&machine, (&past.name, past)));
    baseline.iter().for_each(|past| warn_if_unlike(&machine, ("baseline", past)));
    let bar = progress(cases.iter().map(|(_, rows)| rows.len()).sum());
    bar.set_message("what the machine can do");
    let mut report = Report {
        machine,
        method: args.method.into(),
        ceilings: target.ceilings().map_err(text)?,
        peers: peers.iter().map(|past| past.name.to_string()).collect(),
        results: vec![],
    };
    let budget = Duration::from_secs_f64(args.seconds);
    for (case, rows) in cases {
        bar.set_message(format!("{} {}", case.op(), case.shape()));
        let mut loaded = target.load(case, &rows).map_err(text)?;
        for rows in rows {
            let measured = loaded.measure(rows, budget).map_err(text)?;
            let mut record =
                Record::new(case, (rows, loaded.requests), (&measured, &report.ceilings, report.method));
            record.compare(baseline.as_ref(), &peers);
            report.results.push(record);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    print(&report, args.json)
}

/// The cases that the arguments name, each with its numbers of rows.
fn chosen(args: &Args) -> Result<Vec<(Case, Vec<usize>)>, String> {
    let filter = args.op.as_deref().unwrap_or_default();
    let wanted = |case: &Case| format!("{} {}", case.op(), case.shape()).contains(filter);
    let cases: Vec<_> =
        (Case::all().into_iter().filter(wanted)).map(|case| (case, rows(args, case))).collect();
    if cases.is_empty() {
        return Err(format!("bench: no operation's name contains `{filter}`"));
    }
    for (case, rows) in &cases {
        let bytes = rows.iter().max().unwrap_or(&0) * case.request_bytes();
        if bytes > case.most_bytes() {
            let (op, shape, most) = (case.op(), case.shape(), case.most_bytes() / case.request_bytes());
            let gib = case.most_bytes() >> 30;
            return Err(format!(
                "bench: {op} {shape}: rows must be at most {most}, so that {gib} GiB hold them"
            ));
        }
    }
    Ok(cases)
}

fn rows(args: &Args, case: Case) -> Vec<usize> {
    if args.rows.is_empty() { case.rows(args.backend != BackendName::Cpu) } else { args.rows.clone() }
}

fn warn_if_unlike(machine: &Machine, (name, past): (&str, &Past)) {
    let note = |text: String| crate::note(&format!("note: the {name} figures are of {text}"));
    let then = &past.machine;
    let gpus = [then.gpu.as_ref().map(|gpu| &*gpu.name), machine.gpu.as_ref().map(|gpu| &*gpu.name)];
    match gpus.map(|gpu| gpu.unwrap_or("no GPU")) {
        [was, is] if was != is => note(format!("{was}, here {is}")),
        // Of two GPUs the processor and its threads matter little.
        _ if machine.gpu.is_some() => {}
        _ => {
            if *then.cpu != machine.cpu {
                note(format!("another processor: {}, here {}", &*then.cpu, machine.cpu));
            }
            if let (Some(was), Some(is)) = (then.threads, machine.threads)
                && was != is
            {
                note(format!("{was} threads, here {is}"));
            }
        }
    }
}

/// On standard error, and only where that is a terminal.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn print(report: &Report, json: bool) -> CommandResult {
    let json = json.then(|| serde_json::to_string_pretty(report).map(|json| json + "\n"));
    let json = json.transpose().map_err(|e| format!("json: {e}"))?;
    crate::print(&json.unwrap_or_else(|| table::render(report)))?;
    Ok(Outcome::Good)
}
