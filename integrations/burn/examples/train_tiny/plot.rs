//! The loss against steps, as SVG.

use std::fmt::Write as _;

const WIDTH: f32 = 640.0;
const HEIGHT: f32 = 360.0;
const MARGIN: f32 = 48.0;

/// A plot of the loss at each step, in nats a character.
pub fn loss(losses: &[f32]) -> String {
    let highest = losses.iter().copied().fold(1.0, f32::max).ceil();
    let last = losses.len().saturating_sub(1).max(1) as f32;
    let x = |step: f32| MARGIN + (WIDTH - 2.0 * MARGIN) * step / last;
    let y = |loss: f32| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * loss / highest;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">Loss of train_tiny, nats a character</text>\n"
    );
    for tick in 0..=highest as usize {
        let at = y(tick as f32);
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{tick}</text>",
            WIDTH - MARGIN,
            MARGIN - 6.0,
            at + 4.0
        );
    }
    let points: Vec<String> = losses
        .iter()
        .enumerate()
        .map(|(step, &loss)| format!("{:.1},{:.1}", x(step as f32), y(loss)))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"1.5\"/>",
        points.join(" ")
    );
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">step {}</text>\n</svg>",
        WIDTH - MARGIN,
        HEIGHT - 20.0,
        losses.len().saturating_sub(1)
    );
    svg
}
