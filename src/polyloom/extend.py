"""Everything that methods, blocks, families, tasks, readers and metrics of your own need, in one versioned module.

`docs/extending.md` shows each with an example. `docs/compatibility.md` promises for these names what it promises for
those of `polyloom`: within one `VERSION` nothing is removed, and nothing that is optional becomes required.
"""

from polyloom.backbones.families import Family, register_family
from polyloom.conditions import Condition, ConditionIds, Index, Inventory
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.kinds import RecordKind, StreamItem, kind_of, prediction_to_dict, register_record
from polyloom.data.readers.formats import register_reader
from polyloom.data.records import (
    Answer,
    AnswerPrediction,
    Bitext,
    Choices,
    Conversation,
    LabelledText,
    LabelPrediction,
    Message,
    Pair,
    ParsePrediction,
    Question,
    Record,
    Tagged,
    TagPrediction,
    Text,
    Tree,
)
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import BackboneError, ConditionError, ConfigError, DataError, PolyloomError
from polyloom.io.files import File, read_lines
from polyloom.methods import register_method
from polyloom.methods.base import AdapterConfig, AdapterMethod, Method, MethodConfig, Stage, check, check_positive
from polyloom.metrics import Metric, Score, register_metric
from polyloom.metrics.score import Array
from polyloom.nn.blocks import (
    BLOCKS,
    AttentionBlock,
    BlockKind,
    Norm,
    ProjectionBlock,
    TensorSpec,
    TensorSpecs,
    input_of,
    projection_of,
    register_block,
    shapes_of,
)
from polyloom.nn.hypernetwork import Hypernetwork, OutputProjections, ResidualTrunk
from polyloom.nn.linear import layer_norm, linear
from polyloom.nn.tables import Bank, FixedEmbedding, GrowingEmbedding, normal_init, xavier_init
from polyloom.tasks import register_task
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    choice_loss,
    linear_classifier,
)
from polyloom.tasks.classification import Classification, TextClassification
from polyloom.tasks.tagging import Tagging
from polyloom.weights import BackboneShape, Block, Placement, Shapes, Site, Weights

__all__ = [
    "BLOCKS", "VERSION", "AdapterConfig", "AdapterMethod", "Answer", "AnswerPrediction", "Array", "AttentionBlock",
    "BackboneError", "BackboneShape", "Bank", "Bitext", "Block", "BlockKind", "Choices", "Classification", "Columns",
    "Condition", "ConditionError", "ConditionIds", "ConfigError", "Conversation", "Corpus", "DataError",
    "EncodedExample", "Example", "Family", "File", "FixedEmbedding", "GrowingEmbedding", "HeadInputs", "Hypernetwork",
    "Index", "Inventory", "LabelPrediction", "LabelledText", "Message", "Method", "MethodConfig", "Metric", "Norm",
    "OutputProjections", "Pair", "ParsePrediction", "Placement", "PolyloomError", "ProjectionBlock", "Question",
    "Record", "RecordKind", "ResidualTrunk", "Score", "Shapes", "Site", "Stage", "StreamItem", "TagPrediction",
    "Tagged", "Tagging", "Task", "TaskBatch", "TaskConfig", "TensorSpec", "TensorSpecs", "Text", "TextClassification",
    "Tokenizer", "Tokens", "Tree", "Weights", "check", "check_positive", "choice_loss", "input_of", "kind_of",
    "layer_norm", "linear", "linear_classifier", "normal_init", "prediction_to_dict", "projection_of", "read_lines",
    "register_block", "register_family", "register_method", "register_metric", "register_reader", "register_record",
    "register_task", "resolve", "shapes_of", "xavier_init",
]  # fmt: skip

VERSION = 1
"""Version of this module. It is raised when something is removed, or changes so that extensions must change."""
