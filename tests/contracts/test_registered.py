"""What others register is held to the same contracts."""

from tests.contracts.test_rows import (
    test_every_condition_has_an_effect as check_every_condition_has_an_effect,
)
from tests.contracts.test_rows import (
    test_mixed_batch_equals_each_row_alone_forward_and_gradients as check_mixed_batch,
)
from tests.contracts.test_rows import (
    test_neutral_adapter_is_the_identity_bitwise as check_neutral_adapter,
)
from tests.contracts.tiny import cases, method_with, shared_backbone

BLOCK = {"block": "scale", "placement": "layer"}


def test_a_method_and_a_block_of_the_examples_keep_the_contracts(load_example):
    own_method = load_example("own_method").TaskAdaptersConfig.name
    load_example("own_block")
    registered = [case for case in cases() if case[1:] == ("bert", BLOCK)]
    assert own_method in [method for method, *_ in registered]
    assert len(registered) > 1, "every method takes the block"
    for case in registered:
        check_neutral_adapter(case)
        check_mixed_batch(case)
        check_every_condition_has_an_effect(case)


def test_a_family_of_the_examples_keeps_the_contracts(load_example):
    load_example("own_family")
    case = (method_with("language"), "electra", {"placement": "output"})
    assert case in cases()
    shared_backbone.cache_clear()  # other tests describe the same family in another way
    check_mixed_batch(case)
    shared_backbone.cache_clear()
