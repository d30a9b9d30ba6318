//! What is planned: the weights of a model in order of use, from a pack, a model or a shape file.

use rknpu_sys::layout::{Layout, LayoutError, PAGE, Precision};
use serde::{Deserialize, Serialize};

/// One weight of a model.
///
/// ```
/// use ork_cache::plan::Item;
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let item = Item::new("model.layers.3.mlp.up_proj.weight", Layout::new(64, 64, Precision::Int8)?);
/// assert_eq!((item.layer, item.expert, item.bytes()), (Some(3), None, 4096));
/// # Ok::<(), rknpu_sys::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Name as in the pack; experts are called `name#index`.
    pub name: Box<str>,
    /// Inputs of the matrix.
    pub k: u32,
    /// Output channels of the matrix.
    pub n: u32,
    /// Shape and precision on the device, where zeros stand around a matrix that does not tile.
    pub layout: Layout,
    /// Layer, from the name; `None` for what belongs to no layer.
    pub layer: Option<u32>,
    /// Index among the experts, from the name.
    pub expert: Option<u32>,
    bytes: u64,
}

impl Item {
    /// A weight that fills its layout. Layer and expert are read from its name:
    /// `blk.7.ffn_up_exps.weight#3`, or `model.layers.7.…`.
    ///
    /// ```
    /// use ork_cache::plan::Item;
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let item = Item::new("blk.7.ffn_up_exps.weight#3", Layout::new(64, 64, Precision::Int8)?);
    /// assert_eq!((item.layer, item.expert), (Some(7), Some(3)));
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub fn new(name: impl Into<Box<str>>, layout: Layout) -> Item {
        let name = name.into();
        let layer = ["blk.", "layers."].iter().find_map(|prefix| {
            let at = name.find(prefix)? + prefix.len();
            name[at..].split('.').next()?.parse().ok()
        });
        // Stacks of heads come apart in the same way.
        let stack = name.rsplit_once('#').filter(|(tensor, _)| tensor.contains("exp"));
        let expert = stack.and_then(|(_, index)| index.parse().ok());
        let (k, n, bytes) = (layout.k(), layout.n(), whole_pages(&layout));
        Item { name, k, n, layout, layer, expert, bytes }
    }

    /// The weight with the shape of its matrix, around which its layout has zeros.
    ///
    /// ```
    /// use ork_cache::plan::Item;
    /// use rknpu_sys::layout::{Layout, Precision};
    ///
    /// let layout = Layout::padded(2730, 32_003, Precision::Int8)?;
    /// let head = Item::new("output.weight", layout).of_shape(2730, 32_003);
    /// assert_eq!((head.n, head.layout.n()), (32_003, 32_032));
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    #[must_use]
    pub fn of_shape(self, k: u32, n: u32) -> Item {
        Item { k, n, ..self }
    }

    /// Bytes of a buffer that holds the whole weight.
    ///
    /// ```
    /// # use ork_cache::plan::Item;
    /// # use rknpu_sys::layout::{Layout, Precision};
    /// let item = Item::new("output.weight", Layout::new(64, 96, Precision::Int8)?);
    /// assert_eq!(item.bytes(), 8192); // whole pages
    /// # Ok::<(), rknpu_sys::layout::LayoutError>(())
    /// ```
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The layouts of the column ranges in which the weight goes through slots of `slot` bytes:
    /// one, when it fits whole. `None` when not even one tile of columns fits.
    pub(crate) fn parts(&self, slot: u64) -> Option<Parts> {
        Parts::new(self.layout, slot)
    }

    /// The columns that lie in one of so many domains side by side: the first of them, and their layout.
    /// `None` when there are too few columns for that one.
    pub(crate) fn lane(&self, lane: u8, lanes: u8) -> Option<(u32, Layout)> {
        let tiles = self.layout.n() / self.layout.precision().tile_width();
        let each = tiles.div_ceil(lanes.max(1).into()) * self.layout.precision().tile_width();
        let columns = Parts { layout: self.layout, columns: each, count: lanes.into() };
        columns.get(lane.into())
    }

    /// What the first of so many domains side by side has of it: none has more.
    pub(crate) fn widest_lane(&self, lanes: u8) -> Item {
        let layout = self.lane(0, lanes).map_or(self.layout, |(_, layout)| layout);
        let name = self.name.clone();
        Item { name, n: layout.n(), layout, bytes: whole_pages(&layout), ..*self }
    }
}

/// A weight cut into ranges of columns, all but the last of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    layout: Layout,
    columns: u32,
    count: u32,
}

impl Parts {
    /// The widest that fit slots of `slot` bytes; `None` when not even one tile of columns fits.
    pub(crate) fn new(layout: Layout, slot: u64) -> Option<Parts> {
        let (k, n, precision) = (layout.k(), layout.n(), layout.precision());
        if whole_pages(&layout) <= slot {
            return Some(Parts { layout, columns: n, count: 1 });
        }
        let tile = precision.tile_width();
        // Bytes grow with the columns, so the widest part that fits is found by halving.
        let fits = |tiles: u32| {
            Layout::new(k, tiles * tile, precision).is_ok_and(|l| whole_pages(&l) <= slot)
        };
        let (mut fit, mut over) = (0, n / tile);
        while over - fit > 1 {
            let middle = fit + (over - fit) / 2;
            if fits(middle) { fit = middle } else { over = middle }
        }
        let columns = fit * tile;
        (fit > 0).then(|| Parts { layout, columns, count: n.div_ceil(columns) })
    }

    /// How many.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// First column and layout of part `index`; `None` past the last.
    pub(crate) fn get(&self, index: u32) -> Option<(u32, Layout)> {
        let n0 = index.checked_mul(self.columns).filter(|&n0| n0 < self.layout.n())?;
        let columns = self.columns.min(self.layout.n() - n0);
        // A range of whole tiles of a layout that exists.
        Layout::new(self.layout.k(), columns, self.layout.precision()).ok().map(|l| (n0, l))
    }
}

fn whole_pages(layout: &Layout) -> u64 {
    layout.bytes().next_multiple_of(PAGE)
}

/// A model by its public configuration: enough to plan it, without a byte of its weights.
///
/// ```
/// use ork_cache::plan::Shape;
///
/// let shape = Shape::parse(
///     r#"{ "name": "tiny", "source": "made up", "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1,
///          "head_dim": 32, "ffn": 128, "vocab": 256 }"#,
/// )?;
/// assert_eq!(shape.items()?.len(), 2 * 7 + 1);
/// # Ok::<(), ork_cache::plan::ShapeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Name.
    pub name: String,
    /// Where the numbers come from.
    pub source: String,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of the feed-forward part; absent when every layer is a mixture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ffn: Option<u32>,
    /// Tokens: columns of the output head.
    pub vocab: u32,
    /// Experts of each layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
}

/// The experts of a mixture.
///
/// ```
/// use ork_cache::plan::{Experts, Shape};
///
/// let shape = Shape::known("qwen3-235b-a22b").expect("comes with the crate");
/// assert_eq!(shape.experts, Some(Experts { count: 128, active: 8, ffn: 1536 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a token goes through.
    pub active: u32,
    /// Width of one expert.
    pub ffn: u32,
}

/// A shape that cannot be planned.
///
/// ```
/// use ork_cache::plan::{Shape, ShapeError};
///
/// let shape = Shape::known("gemma-2-9b").expect("comes with the crate");
/// let odd = Shape { vocab: 0, ..shape };
/// assert!(matches!(odd.items(), Err(ShapeError::Layout { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// Not the JSON of a shape.
    #[error("the shape file is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// A weight that does not tile.
    #[error("{name}: {source}")]
    Layout {
        /// Name of the weight.
        name: String,
        /// Why not.
        source: LayoutError,
    },
    /// A product of two sizes is no 32-bit number.
    #[error("the sizes of {0} overflow")]
    Overflow(&'static str),
    /// More weights than can be numbered.
    #[error("{0} weights: at most {max} are planned", max = Shape::MOST)]
    TooMany(u64),
}

impl Shape {
    /// Weights of a shape at most.
    pub(crate) const MOST: u64 = 1 << 22;

    /// Shapes of public models that come with this crate.
    ///
    /// ```
    /// use ork_cache::plan::Shape;
    ///
    /// assert!(Shape::KNOWN.iter().all(|(name, _)| Shape::known(name).is_some()));
    /// ```
    pub const KNOWN: [(&'static str, &'static str); 5] = [
        ("gemma-2-9b", include_str!("../../shapes/gemma-2-9b.json")),
        ("gemma-2-27b", include_str!("../../shapes/gemma-2-27b.json")),
        ("llama-3.1-70b", include_str!("../../shapes/llama-3.1-70b.json")),
        ("qwen3-30b-a3b", include_str!("../../shapes/qwen3-30b-a3b.json")),
        ("qwen3-235b-a22b", include_str!("../../shapes/qwen3-235b-a22b.json")),
    ];

    /// Reads a shape file.
    ///
    /// ```
    /// use ork_cache::plan::{Shape, ShapeError};
    ///
    /// assert!(matches!(Shape::parse("{}"), Err(ShapeError::Json(_))));
    /// ```
    ///
    /// # Errors
    /// JSON that is not a shape.
    pub fn parse(json: &str) -> Result<Shape, ShapeError> {
        Ok(serde_json::from_str(json)?)
    }

    /// A shape that comes with this crate.
    ///
    /// ```
    /// use ork_cache::plan::Shape;
    ///
    /// let shape = Shape::known("llama-3.1-70b").expect("comes with the crate");
    /// assert_eq!(shape.head_dim, shape.hidden / shape.heads);
    /// assert_eq!(Shape::known("gpt-2"), None);
    /// ```
    pub fn known(name: &str) -> Option<Shape> {
        let (_, json) = Shape::KNOWN.iter().find(|(known, _)| *known == name)?;
        Shape::parse(json).ok()
    }

    /// The weights in order of use, as int8, named as in GGUF. The embedding is looked up, not
    /// multiplied, so it is not among them; the output head is.
    ///
    /// ```
    /// use ork_cache::plan::Shape;
    ///
    /// let items = Shape::known("qwen3-30b-a3b").expect("comes with the crate").items()?;
    /// let last = items.last().expect("the output head");
    /// assert_eq!((&*last.name, last.layer), ("output.weight", None));
    /// # Ok::<(), ork_cache::plan::ShapeError>(())
    /// ```
    ///
    /// # Errors
    /// Sizes that are 0 or overflow.
    pub fn items(&self) -> Result<Vec<Item>, ShapeError> {
        let q = self.heads.checked_mul(self.head_dim).ok_or(ShapeError::Overflow("the heads"))?;
        let kv =
            self.kv_heads.checked_mul(self.head_dim).ok_or(ShapeError::Overflow("the heads"))?;
        let h = self.hidden;
        let experts = self.experts.map_or(0, |e| e.count);
        let of_layer = 7 + 3 * u64::from(experts);
        let count = u64::from(self.layers).saturating_mul(of_layer).saturating_add(1);
        if count > Shape::MOST {
            return Err(ShapeError::TooMany(count));
        }
        let mut items = Vec::with_capacity(count as usize);
        let mut add = |layer: Option<u32>, expert, name: String, k, n| {
            let layout = Layout::padded(k, n, Precision::Int8);
            let layout =
                layout.map_err(|source| ShapeError::Layout { name: name.clone(), source })?;
            let bytes = whole_pages(&layout);
            items.push(Item { name: name.into(), k, n, layout, layer, expert, bytes });
            Ok::<(), ShapeError>(())
        };
        for layer in 0..self.layers {
            let at = Some(layer);
            for (part, k, n) in
                [("attn_q", h, q), ("attn_k", h, kv), ("attn_v", h, kv), ("attn_output", q, h)]
            {
                add(at, None, format!("blk.{layer}.{part}.weight"), k, n)?;
            }
            if let Some(ffn) = self.ffn {
                for (part, k, n) in [("gate", h, ffn), ("up", h, ffn), ("down", ffn, h)] {
                    add(at, None, format!("blk.{layer}.ffn_{part}.weight"), k, n)?;
                }
            }
            let Some(Experts { count, ffn, .. }) = self.experts else { continue };
            for e in 0..count {
                for (part, k, n) in [("gate", h, ffn), ("up", h, ffn), ("down", ffn, h)] {
                    add(at, Some(e), format!("blk.{layer}.ffn_{part}_exps.weight#{e}"), k, n)?;
                }
            }
        }
        add(None, None, "output.weight".into(), h, self.vocab)?;
        Ok(items)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_known_shapes_have_the_sizes_of_their_names() {
        let sizes = [(8.3, 9.3), (26.0, 28.0), (69.0, 71.0), (29.5, 31.0), (233.0, 236.0)];
        for ((name, _), (low, high)) in Shape::KNOWN.iter().zip(sizes) {
            let items = Shape::known(name).unwrap().items().unwrap();
            let billions = items.iter().map(Item::bytes).sum::<u64>() as f64 / 1e9;
            assert!((low..high).contains(&billions), "{name}: {billions}");
        }
    }

    #[test]
    fn parts_cover_every_column_once_and_fit() {
        let item = Item::new("output.weight", Layout::new(2048, 8256, Precision::Int8).unwrap());
        for slot in [2048 * 32, 1 << 20, 5 << 20, 64 << 20] {
            let mut next = 0;
            let parts = item.parts(slot).unwrap();
            for (n0, layout) in (0..parts.count()).map(|i| parts.get(i).unwrap()) {
                assert_eq!(n0, next);
                assert!(layout.bytes() <= slot);
                next += layout.n();
            }
            assert_eq!(next, 8256);
        }
        assert_eq!(item.parts(2048 * 32 - 1), None);
    }

    #[test]
    fn lanes_cover_every_column_once_and_the_first_is_the_widest() {
        for (precision, tiles) in
            [(Precision::Int8, 1), (Precision::Int8, 258), (Precision::Int4, 4)]
        {
            let layout = Layout::new(1056, tiles * precision.tile_width(), precision).unwrap();
            let item = Item::new("blk.0.w", layout);
            for lanes in 1..=4 {
                let widest = item.widest_lane(lanes);
                let mut next = 0;
                for (n0, layout) in (0..lanes).map_while(|lane| item.lane(lane, lanes)) {
                    assert_eq!(n0, next);
                    assert!(layout.n() <= widest.layout.n());
                    next += layout.n();
                }
                assert_eq!(next, layout.n());
                assert!(widest.bytes() * u64::from(lanes) >= layout.bytes());
            }
            assert_eq!(item.lane(0, 1), Some((0, layout)));
        }
    }

    #[test]
    fn names_without_a_layer_belong_to_none() {
        let layout = Layout::new(32, 32, Precision::Int8).unwrap();
        for (name, layer, expert) in [
            ("output.weight", None, None),
            ("blk.x.attn_q.weight", None, None),
            ("model.layers.12.mlp.up_proj.weight", Some(12), None),
            ("blk.0.ffn_up_exps.weight#x", Some(0), None),
        ] {
            let item = Item::new(name, layout);
            assert_eq!((item.layer, item.expert), (layer, expert), "{name}");
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        assert!(matches!(Shape::parse("{}"), Err(ShapeError::Json(_))));
        let good = Shape::known("qwen3-30b-a3b").unwrap();
        let odd = Shape { vocab: 0, ..good.clone() };
        assert!(matches!(odd.items(), Err(ShapeError::Layout { .. })));
        let huge = Shape { heads: u32::MAX, ..good.clone() };
        assert!(matches!(huge.items(), Err(ShapeError::Overflow(_))));
        let many = Shape { layers: u32::MAX, ..good };
        assert!(matches!(many.items(), Err(ShapeError::TooMany(_))));
    }
}
