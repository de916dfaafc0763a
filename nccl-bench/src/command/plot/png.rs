//! A drawing as a PNG file.

use std::io::Read as _;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use flate2::Crc;
use flate2::read::GzDecoder;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb, roxmltree};

/// The font of the texts, because machines for jobs may have no fonts. Its licence is beside it.
const FONT: &[u8] = include_bytes!("DejaVuSans.ttf.gz");

/// Name of the font in [`FONT`].
const FAMILY: &str = "DejaVu Sans";

/// Pixels for each unit of the drawing.
const SCALE: f32 = 2.0;

/// Maximum number of pixels. Drawing them takes 400 MB, and few programs show more.
const MAX_PIXELS: f32 = 1e8;

/// Length of the signature and the first chunk of a file (IHDR). Other chunks may begin behind it.
const HEADER: usize = 33;

/// Draws an SVG file as a PNG file, with a comment.
///
/// # Errors
/// When the picture is too large.
pub(super) fn draw_png(svg: &str, text: &str) -> anyhow::Result<Vec<u8>> {
    let document = roxmltree::Document::parse(svg).context("the drawing cannot be read for a picture")?;
    check_size(&document)?;
    let mut font = Vec::new();
    GzDecoder::new(FONT).read_to_end(&mut font)?;
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(font);
    fonts.set_sans_serif_family(FAMILY);
    let options =
        usvg::Options { font_family: FAMILY.to_owned(), fontdb: Arc::new(fonts), ..usvg::Options::default() };
    let tree =
        usvg::Tree::from_xmltree(&document, &options).context("the drawing cannot be read for a picture")?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let picture = size.and_then(|size| Pixmap::new(size.width(), size.height()));
    let mut picture = picture.context("the picture is too large; use --split, or name a drawing (.svg)")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut picture.as_mut());
    let mut file = picture.encode_png().context("the picture cannot be encoded")?;
    file.splice(HEADER..HEADER, encode_comment(text));
    Ok(file)
}

/// Refuses a drawing with a too large picture, before the slow layout of its texts.
fn check_size(document: &roxmltree::Document<'_>) -> anyhow::Result<()> {
    let side = |name| document.root_element().attribute(name).and_then(|side| side.parse::<f32>().ok());
    let [width, height] = ["width", "height"].map(|name| side(name).unwrap_or_default() * SCALE);
    ensure!(
        width * height <= MAX_PIXELS,
        "the picture is too large, with {width:.0} x {height:.0} pixels; use --split, or name a drawing \
         (.svg)"
    );
    Ok(())
}

/// Returns the chunk of a comment: length, type and data, and the checksum of both.
fn encode_comment(text: &str) -> Vec<u8> {
    let content = [b"tEXtComment\0", text.as_bytes()].concat();
    let mut checksum = Crc::new();
    checksum.update(&content);
    let length = (content.len() - 4) as u32;
    [&length.to_be_bytes()[..], &content, &checksum.sum().to_be_bytes()].concat()
}
