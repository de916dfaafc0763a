//! Colours of the style sheets.

use std::collections::BTreeMap;

const CHART: &str = include_str!("../../src/command/plot/chart.css");
const PAGE: &str = include_str!("../../src/command/plot/page.css");

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

/// The colours of a theme, by the name of their variable in the page's style sheet.
fn theme(dark: bool) -> BTreeMap<&'static str, &'static str> {
    let mut themes = PAGE.split(":root{").skip(1);
    let theme = themes.nth(usize::from(dark)).unwrap().split('}').next().unwrap();
    let declarations = theme.split(';').filter_map(|declaration| declaration.trim().split_once(':'));
    declarations.filter_map(|(name, value)| Some((name.strip_prefix("--")?, value))).collect()
}

/// The colours of the runs in a theme.
fn runs(dark: bool) -> Vec<&'static str> {
    let theme = theme(dark);
    (0..10).map(|run| theme[format!("run{run}").as_str()]).collect()
}

#[test]
fn charts_have_the_colours_of_the_page() {
    for (dark, style) in CHART.split("@media").enumerate() {
        for (name, colour) in theme(dark == 1).into_iter().filter(|(name, _)| *name != "marked") {
            assert!(style.contains(colour), "{name}: {colour}");
        }
        for (run, colour) in runs(dark == 1).into_iter().enumerate() {
            assert!(
                style.contains(&format!(".run{run}{{stroke:{colour};fill:{colour}}}")),
                "{run}: {colour}"
            );
        }
    }
}

#[test]
fn colours_can_be_told_from_the_ground_in_both_themes() {
    for dark in [false, true] {
        let theme = theme(dark);
        let of_text = ["text", "muted", "wrong"].map(|name| (theme[name], 4.5));
        for (colour, least) in runs(dark).into_iter().map(|colour| (colour, 3.0)).chain(of_text) {
            let found = contrast(colour, theme["ground"]);
            assert!(found >= least, "{colour}: {found}");
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
    for colours in [false, true].map(runs) {
        for (count, distance) in [(2, 0.25), (3, 0.18), (6, 0.09), (10, 0.07)] {
            assert!(least(count, &colours) >= distance, "{count} of {colours:?}: {}", least(count, &colours));
        }
    }
}
