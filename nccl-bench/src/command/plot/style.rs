//! Colours and style sheets.
//!
//! Charts have literal colours, since many viewers of SVG support neither variables nor media queries.

use std::fmt::Write as _;

use super::frame::Frame;
use super::text::FONT_SIZE;

/// The colours of runs on a light and on a dark background. The first ones are the easiest to distinguish, also for people
/// with red-green colour blindness.
pub(super) const RUNS: [(&str, &str); 10] = [
    ("#658bf6", "#7393fd"),
    ("#823d02", "#c8600c"),
    ("#699d7b", "#7ad8b5"),
    ("#832295", "#b05ba0"),
    ("#b8840a", "#e0bd50"),
    ("#124958", "#7ac5fd"),
    ("#8160b9", "#5a71d4"),
    ("#6c2d2b", "#b17876"),
    ("#575d68", "#9ca6b3"),
    ("#5c7943", "#a6a036"),
];

/// The CSS class with the colour of run `index`.
pub(super) fn run_class(index: usize) -> String {
    format!("run{}", index % RUNS.len())
}

/// One theme.
struct Theme {
    ground: &'static str,
    text: &'static str,
    muted: &'static str,
    grid: &'static str,
    frame: &'static str,
    wrong: &'static str,
}

const LIGHT: Theme = Theme {
    ground: "#ffffff",
    text: "#1c2127",
    muted: "#59626e",
    grid: "#e6e9ed",
    frame: "#aab2bd",
    wrong: "#c8102e",
};

const DARK: Theme = Theme {
    ground: "#15191e",
    text: "#e8ecf1",
    muted: "#a3adb9",
    grid: "#2a3139",
    frame: "#5b6673",
    wrong: "#ff6b74",
};

const FONTS: &str =
    "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif";

/// The style sheet of charts.
pub(super) fn charts() -> String {
    let mut css = format!(
        ".chart text{{font-family:{FONTS};font-size:{FONT_SIZE}px;stroke:none}}\n\
         .chart .title{{font-size:16px;font-weight:600}}\n.chart .heading{{font-size:21px}}\n\
         .chart .alarm{{font-weight:600}}\n\
         .chart .end{{text-anchor:end}}\n.chart .middle{{text-anchor:middle}}\n\
         .chart .line,.chart .sample{{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}}\n\
         .chart .sample{{stroke-width:2.5}}\n\
         .chart .line.in-place,.chart .sample.in-place{{stroke-dasharray:5 4}}\n\
         .chart .band{{stroke:none;fill-opacity:.15}}\n\
         .chart .mark{{stroke-width:1.5}}\n\
         .chart .hit{{fill:none;stroke:none;pointer-events:all}}\n\
         .chart .tip{{pointer-events:none}}\n.chart .target:focus{{outline:none}}\n\
         .chart .target:focus .tip{{display:inline}}\n\
         .chart .wrong{{fill:none;stroke-width:2.25}}\n\
         .chart .grid,.chart .frame{{fill:none;stroke-width:1}}\n"
    );
    css.push_str(&theme(&LIGHT, |(light, _)| light));
    let dark = theme(&DARK, |(_, dark)| dark);
    css.push_str("@media screen and (prefers-color-scheme:dark){\n");
    css.push_str(&dark);
    css.push_str("}\n");
    css
}

fn theme(theme: &Theme, colour: impl Fn((&'static str, &'static str)) -> &'static str) -> String {
    let Theme { ground, text, muted, grid, frame, wrong } = theme;
    let mut css = format!(
        ".chart .ground{{fill:{ground}}}\n\
         .chart text{{fill:{text}}}\n.chart .muted{{fill:{muted}}}\n\
         .chart .alarm{{fill:{wrong}}}\n\
         .chart .grid{{stroke:{grid}}}\n.chart .frame{{stroke:{frame}}}\n\
         .chart .neutral{{stroke:{muted};fill:{muted}}}\n"
    );
    for (index, &pair) in RUNS.iter().enumerate() {
        let colour = colour(pair);
        // Writing to a string cannot fail.
        let _ = writeln!(css, ".chart .run{index}{{stroke:{colour};fill:{colour}}}");
    }
    let _ = write!(
        css,
        ".chart .line,.chart .sample{{fill:none}}\n.chart .band{{stroke:none}}\n\
         .chart .hollow{{fill:{ground}}}\n\
         .chart .tip rect{{stroke:{frame}}}\n.chart .target:focus .hit{{stroke:{text}}}\n\
         .chart .wrong{{stroke:{wrong};fill:none}}\n"
    );
    css
}

/// The style sheet of the page around the charts.
pub(super) fn page() -> String {
    let variables = |theme: &Theme, colour: &dyn Fn((&'static str, &'static str)) -> &'static str| {
        let Theme { ground, text, muted, grid, frame, wrong } = theme;
        let mut css = format!(
            "--ground:{ground};--text:{text};--muted:{muted};--grid:{grid};--frame:{frame};--wrong:{wrong};"
        );
        for (index, &pair) in RUNS.iter().enumerate() {
            let _ = write!(css, "--run{index}:{};", colour(pair));
        }
        css
    };
    let light = variables(&LIGHT, &|(light, _)| light);
    let dark = variables(&DARK, &|(_, dark)| dark);
    let [wide, narrow] = [Frame::WIDE, Frame::NARROW].map(|frame| {
        let (from, to) = frame.sizes();
        let percent = |pixels: f64| 100.0 * pixels / frame.width;
        format!("--from:{:.4}%;--span:{:.4}%", percent(from), percent(to - from))
    });
    let swatches: String = (0..RUNS.len())
        .map(|index| format!(".swatch.run{index}{{background:var(--run{index})}}\n"))
        .collect();
    format!(
        ":root{{color-scheme:light dark;{light}--marked:#fff3c4}}\n\
         @media screen and (prefers-color-scheme:dark){{:root{{{dark}--marked:#4a3c0a}}}}\n\
         .plot{{{wide}}}\n@media (max-width:34rem){{.plot{{{narrow}}}}}\n\
         body{{margin:0 auto;padding:1.5rem 1.25rem 3rem;max-width:100rem;background:var(--ground);color:var(--text);\
         font:15px/1.45 {FONTS}}}\n{PAGE}{swatches}"
    )
}

const PAGE: &str = "\
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .25rem}
h2{font-size:1.25rem;margin:2.5rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--grid)}
h2 small,header p{color:var(--muted);font-weight:400}
header p{margin:0}
a{color:inherit}
section{scroll-margin-top:2.75rem}
.headlines{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem;margin-top:.75rem}
.headline h2{font-size:1rem;margin:0;padding:0;border:0}
.headline .peak{color:var(--text);margin-bottom:.25rem}
.headline .peak strong{display:block;font-size:1.9rem;line-height:1.2}
.headline .alarm{color:var(--wrong);font-weight:600}
.links{position:sticky;top:0;z-index:3;display:flex;gap:1.1rem;margin:1.25rem -1.25rem 0;padding:.5rem 1.25rem;\
overflow-x:auto;white-space:nowrap;background:var(--ground);border-bottom:1px solid var(--grid);font-size:.9rem}
.links a{padding:.15rem 0}
.overview{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.75rem}
.overview a{display:block;padding:.5rem .6rem;border:1px solid var(--grid);border-radius:6px;text-decoration:none}
.overview a:hover,.overview a:focus-visible{border-color:var(--muted)}
.overview b{display:block;font-size:.9rem;overflow-wrap:anywhere}
.overview span{color:var(--muted);font-size:.85rem;font-variant-numeric:tabular-nums}
.overview svg{display:block;width:100%;height:auto;margin:.3rem 0}
.problems{margin:1rem 0 0;padding:.6rem 1rem .6rem 2rem;border:1px solid var(--wrong);border-radius:6px}
.problems strong{color:var(--wrong)}
.charts{display:grid;margin-top:.9rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:1.25rem}
figure{margin:0;max-width:46rem;break-inside:avoid}
figcaption{font-weight:600;margin-bottom:.25rem}
.note{margin:.25rem 0 0;color:var(--muted);font-size:.85rem}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1.4rem;margin:0 0 .35rem;padding:0;list-style:none;font-size:.85rem}
.entry{display:flex;align-items:center;gap:.5rem;overflow-wrap:anywhere}
.key{width:26px;height:16px;flex:none}
.plot{position:relative;display:grid}
.plot>*{grid-area:1/1;min-width:0}
.plot svg{display:block;width:100%;height:auto}
.plot .narrow{display:none}
.readings{display:flex;margin-left:calc(var(--from) + var(--span)*var(--start));width:calc(var(--span)*var(--width))}
.readings label{flex:1 1 0;min-width:0;cursor:crosshair}
.readings label:hover,.readings label:focus-within{background:rgb(128 128 128/.2)}
.readings label:has(:focus-visible){outline:2px solid var(--text)}
.readings input{position:absolute;opacity:0;margin:0;pointer-events:none;scroll-margin-block:4rem 30rem}
.reading{display:none;position:absolute;top:100%;left:0;right:0;z-index:2;padding:.5rem .75rem;background:var(--ground);\
border:1px solid var(--frame);border-radius:6px;box-shadow:0 4px 16px rgb(0 0 0/.25);font-size:.85rem;cursor:auto;\
font-variant-numeric:tabular-nums}
.reading>span{display:block;margin-top:.2rem}
.reading .wrong{color:var(--wrong)}
.readings label:hover .reading,.readings input:focus+.reading{display:block}
.readings:hover label:not(:hover) .reading{display:none}
.swatch{display:inline-block;width:.7em;height:.7em;margin-right:.45em;border-radius:2px;print-color-adjust:exact;\
-webkit-print-color-adjust:exact}
.scroll{overflow-x:auto;margin-top:.75rem}
details{margin-top:1rem}
summary{cursor:pointer;color:var(--muted)}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);padding-bottom:.4rem}
th,td{padding:.15rem .6rem;text-align:right;white-space:nowrap;vertical-align:top}
thead th{border-bottom:1px solid var(--frame);font-weight:600}
thead th.group{text-align:center;border-bottom:1px solid var(--grid)}
th small{font-weight:400;color:var(--muted)}
tbody th{font-weight:400}
tbody.size{border-top:1px solid var(--grid)}
.name,td.text{text-align:left}
td.text{white-space:normal;min-width:9rem}
td.first,th.first{border-left:1px solid var(--grid)}
td.wrong{color:var(--wrong);font-weight:700}
.runs th{text-align:left;color:var(--muted)}
.runs thead th{color:var(--text)}
.runs td{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:11rem;max-width:34rem}
.runs th[colspan]{color:var(--text);font-weight:600;padding-top:.9rem;border-bottom:1px solid var(--grid)}
.runs tr.differs th,.runs tr.differs td{background:var(--marked);color:var(--text);print-color-adjust:exact;\
-webkit-print-color-adjust:exact}
footer{margin-top:2.5rem;color:var(--muted);font-size:.85rem}
.headline p{overflow-wrap:anywhere}
@media (max-width:34rem){body{padding-left:1rem;padding-right:1rem}.plot .wide{display:none}.plot .narrow{display:block}
.overview{grid-template-columns:1fr 1fr}.links{margin-left:-1rem;margin-right:-1rem;padding-left:1rem;padding-right:1rem}
.reading{position:fixed;top:auto;bottom:0;border-radius:6px 6px 0 0;max-height:60vh}}
@page{size:landscape;margin:12mm}
@media print{body{padding:0;max-width:none;font-size:10pt}.links,summary,.readings{display:none}\
details::details-content{content-visibility:visible;display:block}.charts{grid-template-columns:1fr 1fr}.scroll{overflow:visible}
table{font-size:7pt}td.text{min-width:0}tbody.size{break-inside:avoid}th,td{padding:.1rem .35rem}thead{display:table-header-group}tr{break-inside:avoid}
h2{break-after:avoid}.runs td{min-width:0}}
";

#[cfg(test)]
mod tests {
    use super::*;

    /// Red, green and blue, linear in light.
    fn light(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    /// WCAG 2's contrast of two colours.
    fn contrast(one: &str, other: &str) -> f64 {
        let luminance = |colour| {
            let [red, green, blue] = light(colour);
            0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
        };
        let (one, other) = (luminance(one), luminance(other));
        one.max(other) / one.min(other)
    }

    #[test]
    fn colours_can_be_told_from_the_ground_in_both_themes() {
        for (light, dark) in RUNS {
            assert!(contrast(light, LIGHT.ground) >= 3.0, "{light}: {}", contrast(light, LIGHT.ground));
            assert!(contrast(dark, DARK.ground) >= 3.0, "{dark}: {}", contrast(dark, DARK.ground));
        }
        for theme in [LIGHT, DARK] {
            for text in [theme.text, theme.muted, theme.wrong] {
                assert!(contrast(text, theme.ground) >= 4.5, "{text}: {}", contrast(text, theme.ground));
            }
        }
    }

    type Matrix = [[f64; 3]; 3];

    fn times(matrix: &Matrix, vector: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row.iter().zip(vector).map(|(a, b)| a * b).sum())
    }

    /// Converts a colour to Oklab, in which distances correspond to perceived differences.
    fn oklab(linear: [f64; 3]) -> [f64; 3] {
        const CONES: Matrix = [
            [0.412_221_470_8, 0.536_332_536_3, 0.051_445_992_9],
            [0.211_903_498_2, 0.680_699_545_1, 0.107_396_956_6],
            [0.088_302_461_9, 0.281_718_837_6, 0.629_978_700_5],
        ];
        const LAB: Matrix = [
            [0.210_454_255_3, 0.793_617_785, -0.004_072_046_8],
            [1.977_998_495_1, -2.428_592_205, 0.450_593_709_9],
            [0.025_904_037_1, 0.782_771_766_2, -0.808_675_766],
        ];
        times(&LAB, times(&CONES, linear).map(f64::cbrt))
    }

    #[test]
    fn colours_of_runs_can_be_told_apart_without_seeing_red_or_green() {
        const ALL: Matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        // Machado, Oliveira and Fernandes (2009), severity 1.
        const NO_GREEN: Matrix = [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ];
        const NO_RED: Matrix = [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ];
        let least = |count: usize, colours: &[&str]| {
            let mut least = f64::INFINITY;
            for eyes in [ALL, NO_GREEN, NO_RED] {
                let seen: Vec<_> = colours[..count]
                    .iter()
                    .map(|colour| oklab(times(&eyes, light(colour)).map(|part| part.clamp(0.0, 1.0))))
                    .collect();
                for (index, one) in seen.iter().enumerate() {
                    for other in &seen[..index] {
                        let square: f64 = one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum();
                        least = least.min(square.sqrt());
                    }
                }
            }
            least
        };
        let (bright, dark): (Vec<_>, Vec<_>) = RUNS.into_iter().unzip();
        for colours in [bright, dark] {
            for (count, distance) in [(2, 0.25), (3, 0.18), (6, 0.09), (10, 0.07)] {
                assert!(
                    least(count, &colours) >= distance,
                    "{count} of {colours:?}: {}",
                    least(count, &colours)
                );
            }
        }
    }
}
