//! A small logarithmic line plot as SVG text.

use std::fmt::Write as _;

/// Points joined by lines, from left to right.
pub struct Curve {
    /// Curves of one name have one colour.
    pub name: &'static str,
    /// Drawn dashed, and left out of the legend.
    pub dashed: bool,
    /// Those that are not positive and finite are left out: they have no place on a logarithmic axis.
    pub points: Vec<(f64, f64)>,
}

/// A plot with two logarithmic axes.
pub struct Plot {
    pub title: String,
    pub x_label: &'static str,
    pub y_label: &'static str,
    pub curves: Vec<Curve>,
}

/// Of the picture, and of the frame in it.
const SIZE: [f64; 2] = [720.0, 440.0];
const FRAME: [f64; 4] = [70.0, 40.0, 610.0, 390.0];
const COLOURS: [&str; 6] = ["#1b6ca8", "#d1495b", "#2e8b57", "#8d5fd3", "#c77d0a", "#555555"];

/// From the logarithm of a number to a place in the picture.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Covers all logarithms, out to whole numbers.
    fn new(logarithms: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = logarithms.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
            (number.floor().min(low), number.ceil().max(high))
        });
        let (low, high) = if low <= high { (low, high.max(low + 1.0)) } else { (0.0, 1.0) };
        Axis { low, high, from, to }
    }

    fn place(&self, logarithm: f64) -> f64 {
        self.from + (logarithm - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = i32> {
        self.low as i32..=self.high as i32
    }
}

impl Plot {
    /// The picture.
    pub fn svg(&self) -> String {
        let [left, top, right, bottom] = FRAME;
        let x = Axis::new(self.drawn().map(|(x, _)| x.log2()), left, right);
        let y = Axis::new(self.drawn().map(|(_, y)| y.log10()), bottom, top);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            SIZE[0], SIZE[1]
        );
        let middle = (left + right) / 2.0;
        text(&mut svg, middle, top - 16.0, "middle", &self.title);
        text(&mut svg, middle, bottom + 36.0, "middle", self.x_label);
        text(&mut svg, left - 60.0, top - 16.0, "start", self.y_label);
        for power in x.ticks() {
            let at = x.place(f64::from(power));
            line(&mut svg, "#dddddd", false, &[(at, top), (at, bottom)]);
            text(&mut svg, at, bottom + 16.0, "middle", &format!("{}", 2f64.powi(power)));
        }
        for power in y.ticks() {
            let at = y.place(f64::from(power));
            line(&mut svg, "#dddddd", false, &[(left, at), (right, at)]);
            text(&mut svg, left - 6.0, at + 4.0, "end", &format!("1e{power}"));
        }
        let mut names: Vec<&str> = self.curves.iter().map(|curve| curve.name).collect();
        names.dedup();
        for curve in &self.curves {
            let rank = names.iter().position(|&name| name == curve.name).unwrap_or(0);
            let colour = COLOURS[rank % COLOURS.len()];
            let points: Vec<(f64, f64)> =
                curve.drawn().map(|(h, v)| (x.place(h.log2()), y.place(v.log10()))).collect();
            line(&mut svg, colour, curve.dashed, &points);
            if !curve.dashed {
                let height = top + 16.0 * (rank as f64 + 1.0);
                line(
                    &mut svg,
                    colour,
                    false,
                    &[(right + 12.0, height - 4.0), (right + 36.0, height - 4.0)],
                );
                text(&mut svg, right + 42.0, height, "start", curve.name);
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn drawn(&self) -> impl Iterator<Item = (f64, f64)> {
        self.curves.iter().flat_map(Curve::drawn)
    }
}

impl Curve {
    fn drawn(&self) -> impl Iterator<Item = (f64, f64)> {
        let drawable = |number: f64| number > 0.0 && number.is_finite();
        self.points.iter().copied().filter(move |&(x, y)| drawable(x) && drawable(y))
    }
}

fn line(svg: &mut String, colour: &str, dashed: bool, points: &[(f64, f64)]) {
    let dashes = if dashed { " stroke-dasharray=\"4 4\"" } else { "" };
    let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dashes}/>",
        places.join(" ")
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> String {
        let curve = |dashed| Curve { name: "dq", dashed, points: points.clone() };
        let curves = vec![curve(false), curve(true)];
        Plot { title: "a < b".into(), x_label: "x", y_label: "y", curves }.svg()
    }

    #[test]
    fn a_curve_runs_from_corner_to_corner_of_whole_powers() {
        let svg = plot(vec![(1.0, 1e-3), (4.0, 1e-2)]);
        assert!(
            svg.contains("points=\"70.0,390.0 610.0,40.0\" fill=\"none\" stroke=\"#1b6ca8\"/>"),
            "{svg}"
        );
        assert!(svg.contains("stroke-dasharray") && svg.contains("a &lt; b") && svg.contains(">1e-3<"));
    }

    #[test]
    fn numbers_without_a_logarithm_are_left_out() {
        let svg = plot(vec![(1.0, 0.0), (2.0, f64::NAN), (0.0, 1.0), (4.0, f64::INFINITY)]);
        assert!(svg.contains("points=\"\"") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
