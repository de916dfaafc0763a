//! Layouts of a chart.

/// The layout of a chart, in the pixels of its SVG.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The chart's CSS class: `wide`.
    pub(super) name: &'static str,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// The layout for half a page and for drawings.
    pub(super) const WIDE: Self = Self {
        name: "wide",
        width: 640.0,
        height: 350.0,
        left: 64.0,
        right: 628.0,
        top: 26.0,
        bottom: 306.0,
    };
    /// The layout for a phone: as wide as its screen, so that text is not scaled down.
    pub(super) const NARROW: Self = Self {
        name: "narrow",
        width: 360.0,
        height: 284.0,
        left: 60.0,
        right: 352.0,
        top: 26.0,
        bottom: 240.0,
    };
    /// Distance of the first and last size from the frame, so that markers do not touch it.
    const INSET: f64 = 12.0;

    /// The x coordinates of the first and the last message size.
    pub(super) fn sizes(&self) -> (f64, f64) {
        (self.left + Self::INSET, self.right - Self::INSET)
    }
}
