//! A chart as SVG: microseconds against rows, both by powers.

use super::{Chart, Kind};
use plotters::prelude::*;

const SIZE: (u32, u32) = (460, 330);
const OURS: [RGBColor; 4] =
    [RGBColor(0, 90, 200), RGBColor(200, 60, 0), RGBColor(0, 140, 90), RGBColor(140, 60, 160)];

/// How a series looks: its colour, and how wide its line is.
fn look(kind: Kind) -> (RGBColor, u32) {
    match kind {
        Kind::Ours(i) => (OURS[i % OURS.len()], 3),
        Kind::Warm => (RGBColor(120, 170, 230), 1),
        Kind::Peer => (RGBColor(210, 40, 60), 2),
        Kind::Goal => (RGBColor(40, 150, 60), 1),
        Kind::Bare => (RGBColor(130, 130, 130), 1),
        Kind::Floor => (RGBColor(190, 190, 190), 1),
    }
}

/// A series' colour, as a page names it.
pub(super) fn colour(kind: Kind) -> String {
    let RGBColor(red, green, blue) = look(kind).0;
    format!("#{red:02x}{green:02x}{blue:02x}")
}

pub(super) fn svg(chart: &Chart<'_>) -> Result<String, String> {
    let mut text = String::new();
    draw(chart, SVGBackend::with_string(&mut text, SIZE)).map_err(|e| format!("report: {e}"))?;
    Ok(text)
}

fn draw(chart: &Chart<'_>, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let rows = points().map(|point| point.0).max().unwrap_or(1);
    let least = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let area = backend.into_drawing_area();
    let mut plot =
        ChartBuilder::on(&area).margin(8).x_label_area_size(32).y_label_area_size(48).build_cartesian_2d(
            (1f64..rows as f64 * 1.1).log_scale().base(2.0),
            (least * 0.8..most * 1.25).log_scale().base(2.0),
        )?;
    plot.configure_mesh()
        .x_desc("rows")
        .y_desc("µs")
        .x_labels(6)
        .y_labels(8)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if *y < 1.0 { format!("{y:.2}") } else { format!("{y:.0}") })
        .light_line_style(WHITE)
        .draw()?;
    // Ours last, above the others.
    for series in chart.series.iter().rev() {
        let (colour, width) = look(series.kind);
        let style = colour.stroke_width(width);
        let at = || series.points.iter().map(|&(rows, us)| (rows as f64, us));
        plot.draw_series(LineSeries::new(at(), style))?;
        plot.draw_series(at().map(|point| Circle::new(point, 2, style.color.filled())))?;
    }
    area.present()?;
    drop(plot);
    Ok(())
}
