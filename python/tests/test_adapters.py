"""Adapters: whether frameworks may call them, by their sources where they are there, and what they do, with stand-ins."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import peerwarp
import sources
from peerwarp import _adapters, sglang, vllm
from sources import Signature, calls, found, module, names

OURS = Path(peerwarp.__file__).parent
FUSED_MOE = "vllm.model_executor.layers.fused_moe"
SGLANG_MOE = "sglang.srt.layers.moe"


def ours(name: str) -> ast.Module:
    return ast.parse((OURS / f"{name}.py").read_text(encoding="utf-8"))


def imported(of: ast.Module, package: str) -> dict[str, list[str]]:
    """What a module imports of a package, by the module that it is from."""
    every = [one for one in ast.walk(of) if isinstance(one, ast.ImportFrom) and (one.module or "").startswith(package)]
    return {str(one.module): [name.name for name in one.names] for one in every}


# As frameworks call them.


def test_every_method_of_flashinfers_communication_is_there_and_takes_what_it_passes() -> None:
    base = found(module("flashinfer.moe_ep.core.comm.communication"), "MoEEpCommunication")
    own = found(ours("flashinfer"), "Communication")
    theirs = {one.name: one for one in base.body if isinstance(one, ast.FunctionDef)}
    methods = {one.name: one for one in own.body if isinstance(one, ast.FunctionDef)}
    abstract = {name for name, one in theirs.items() if "abstractmethod" in names(ast.Module(one.decorator_list, []))}
    assert abstract == {"is_platform_supported", "dispatch", "combine"}
    assert abstract <= set(methods)
    for name, method in methods.items():
        Signature(method).takes(Signature(theirs[name]))


def test_what_is_used_of_flashinfer_is_there() -> None:
    communication = module("flashinfer.moe_ep.core.comm.communication")
    exported = names(module("flashinfer.moe_ep"))
    for used in imported(ours("flashinfer"), "flashinfer").values():
        assert set(used) <= exported
    own = ours("flashinfer")
    params = names(found(communication, "MoEEpCommParams"))
    used = {one.attr for one in ast.walk(own) if isinstance(one, ast.Attribute) and getattr(one.value, "id", "") == "params"}
    assert used <= params, used - params
    result = names(found(communication, "MoEEpDispatchResult"))
    (made,) = calls(own, "MoEEpDispatchResult")
    assert {one.arg for one in made.keywords} <= result
    formats = next(one for one in ast.walk(own) if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == "FORMATS")
    assert set(ast.literal_eval(formats.value)) <= names(communication)
    assert "process_group" in names(found(module("flashinfer.moe_ep.config"), "BootstrapConfig"))
    # A backend by its name is made of these two alone.
    Signature(found(own, "Communication.__init__")).takes_call(ast.parse("cls(bootstrap, params)", mode="eval").body)  # type: ignore[arg-type]


def test_vllms_layers_may_be_ours() -> None:
    base = module(f"{FUSED_MOE}.modular_kernel")
    replaced = module(f"{FUSED_MOE}.prepare_finalize.naive_dp_ep")
    own = ours("vllm")
    for name in ("prepare", "finalize"):
        signature = Signature(found(own, f"PrepareAndFinalize.{name}"))
        signature.takes(Signature(found(replaced, f"MoEPrepareAndFinalizeNaiveDPEPModular.{name}")))
        assert signature.names == Signature(found(base, f"FusedMoEPrepareAndFinalizeModular.{name}")).names
        # What is passed on is what the replaced class takes, in its order.
        assert {"super", "given"} <= names(found(own, f"PrepareAndFinalize.{name}"))
    given = Signature(found(own, "PrepareAndFinalize.allocate_fused_expert_output"))
    given.takes(Signature(found(base, "FusedMoEPrepareAndFinalize.allocate_fused_expert_output")))
    factory = Signature(found(replaced, "make_moe_prepare_and_finalize_naive_dp_ep"))
    assert Signature(found(own, "register.make")).names == factory.names
    assert Signature(found(own, "register.make")).optional == factory.optional
    # It is looked up at each call, under this name.
    utils = module(f"{FUSED_MOE}.all2all_utils")
    for call in calls(utils, "make_moe_prepare_and_finalize_naive_dp_ep"):
        factory.takes_call(call, bound=0)
    assert len(calls(utils, "make_moe_prepare_and_finalize_naive_dp_ep")) == 2


def test_what_is_used_of_vllm_is_there() -> None:
    own = ours("vllm")
    for place, used in imported(own, "vllm").items():
        known = sources.exported(place) | {path for name in used if (path := _submodule(place, name))}
        assert set(used) <= known, (place, set(used) - known)
    assert "_lora_context" in names(module(f"{FUSED_MOE}.prepare_finalize.naive_dp_ep"))
    assert "get_chunk_sizes_across_dp_rank" in names(found(module("vllm.forward_context"), "DPMetadata"))
    group = names(found(module("vllm.distributed.parallel_state"), "GroupCoordinator"))
    assert {"cpu_group", "world_size", "rank_in_group"} <= group
    assert "max_num_batched_tokens" in names(found(module("vllm.config.scheduler"), "SchedulerConfig"))
    quantized = names(found(module(f"{FUSED_MOE}.config"), "FusedMoEQuantConfig"))
    assert {"quant_dtype", "block_shape", "a1_scale", "per_act_token_quant"} <= quantized
    quantize = Signature(found(module(f"{FUSED_MOE}.utils"), "moe_kernel_quantize_input"))
    (call,) = calls(own, "moe_kernel_quantize_input")
    quantize.takes_call(call, bound=0)
    assert quantize.names[:5] == ["A", "A_scale", "quant_dtype", "per_act_token_quant", "block_shape"]
    (apply,) = calls(own, "apply")
    Signature(found(module(f"{FUSED_MOE}.modular_kernel"), "TopKWeightAndReduce.apply")).takes_call(apply)
    assert "vllm.general_plugins" in names(module("vllm.plugins"))


def _submodule(place: str, name: str) -> str | None:
    try:
        module(f"{place}.{name}")
    except AssertionError:
        return None
    return name


def test_sglangs_dispatcher_may_be_made_and_called_as_ours() -> None:
    theirs, own = module(f"{SGLANG_MOE}.token_dispatcher.flashinfer"), ours("sglang")
    dispatcher = found(theirs, "FlashinferDispatcher")
    # The hook's first parameter is what it is around.
    made = Signature(found(own, "make_dispatcher"))
    made.names = made.names[1:]
    assert made.names == Signature(found(dispatcher, "__init__")).names[: len(made.names)]
    assert made.takes_more == (True, True)
    sizes = Signature(found(own, "MoeAlltoAll.__init__"))
    (call,) = calls(dispatcher, "MoeAlltoAll")
    sizes.takes_call(call, bound=4)
    for name in ("dispatch", "get_combine_payload_tensor_in_workspace", "combine"):
        of_ours = [one for one in calls(dispatcher, name) if "active_moe_a2a" in names(one.func)]
        assert len(of_ours) == 1, name
        Signature(found(own, f"MoeAlltoAll.{name}")).takes_call(of_ours[0])
    used = {"invalid_token_expert_id", "ep_size", "active_moe_a2a", "runtime_max_tokens_per_rank"}
    assert used <= names(dispatcher)
    # Both are looked up in the module when a dispatcher is made, the first after the empty id has been chosen.
    assert {"MoeAlltoAll", "moe_a2a_get_workspace_size_per_rank", "get_flashinfer_a2a_dispatch_type"} <= names(theirs)
    lines = [one.lineno for one in ast.walk(dispatcher) if isinstance(one, ast.Attribute) and one.attr == "invalid_token_expert_id"]
    assert min(lines) < call.lineno
    assert "BF16" in names(found(module(f"{SGLANG_MOE}.utils"), "FlashinferA2ADispatchType"))


def test_sglangs_registry_takes_our_hooks() -> None:
    registry = module("sglang.srt.plugins.hook_registry")
    assert "AROUND" in names(found(registry, "HookType"))
    for call in calls(ours("sglang"), "register"):
        Signature(found(registry, "HookRegistry.register")).takes_call(call)
    assert "sglang.srt.plugins" in names(module("sglang.srt.plugins"))


# What they do.


def test_plugins_are_inert_unless_their_variables_switch_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for plugin in (sglang, vllm):
        for value in (None, "", "0"):
            monkeypatch.delenv(plugin.VARIABLE, raising=False)
            if value is not None:
                monkeypatch.setenv(plugin.VARIABLE, value)
            # Neither framework need be there.
            plugin.register()
        monkeypatch.setenv(plugin.VARIABLE, "yes")
        with pytest.raises(peerwarp.InvalidArgument, match="allowed: 1"):
            plugin.register()


def test_frameworks_find_the_plugins() -> None:
    try:
        entries = importlib.metadata.distribution("peerwarp").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("peerwarp is not installed, but taken from its sources")
    there = {(one.group, one.value) for one in entries}
    assert ("vllm.general_plugins", "peerwarp.vllm:register") in there
    assert ("sglang.srt.plugins", "peerwarp.sglang:register") in there


class Rows:
    """As much of a tensor as adapters look at."""

    def __init__(self, *shape: int, dtype: str = "torch.bfloat16") -> None:
        self.shape, self.dtype, self.device = shape, dtype, "cuda:0"

    def dim(self) -> int:
        return len(self.shape)

    def to(self, dtype: str) -> Rows:
        return self if dtype == self.dtype else Rows(*self.shape, dtype=dtype)

    def flatten(self, first: int, last: int) -> Rows:
        assert (first, last) == (0, 1)
        return Rows(self.shape[0] * self.shape[1], *self.shape[2:], dtype=self.dtype)

    def unflatten(self, axis: int, sizes: tuple[int, int]) -> Rows:
        assert axis == 0 and sizes[0] * sizes[1] == self.shape[0]
        return Rows(*sizes, *self.shape[1:], dtype=self.dtype)

    def view(self, dtype: str) -> Rows:
        return Rows(*self.shape, dtype=dtype)

    def new_empty(self, shape: tuple[int, ...], dtype: str) -> Rows:
        return Rows(*shape, dtype=dtype)

    def __lt__(self, number: int) -> tuple[str, int]:
        return "less", number

    def masked_fill(self, mask: object, value: int) -> tuple[Rows, object, int]:
        return self, mask, value


class Operation:
    """Two ranks, 4 experts, 2 of a token, 8 elements; there is room for 4 tokens of a rank."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def dispatch(self, x: Rows, ids: Rows, weights: Rows, *, scales: Rows | None = None, max_tokens: int | None = None) -> Any:
        self.calls.append(("dispatch", x, ids, weights, scales, max_tokens))
        scales_there = None if scales is None else Rows(8, 1, dtype="torch.float32")
        ids, weights = Rows(8, 2, dtype="torch.int32"), Rows(8, 2, dtype="torch.float32")
        rows = Rows(8, 8, dtype=x.dtype)
        found = types.SimpleNamespace(rows=rows, ids=ids, sent_weights=weights, scales=scales_there, capacity=4, first_expert=0)
        self.d = found
        return found

    def combine(self, d: Any, y: Rows, *, out: Rows | None = None) -> Rows:
        self.calls.append(("combine", d, y.shape, out))
        return out or Rows(3, 8)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """In place of PyTorch."""
    made = types.ModuleType("torch")
    made.__dict__.update(
        int32="torch.int32", float32="torch.float32", ones=lambda shape, device: Rows(*shape, dtype="torch.float32")
    )
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> types.ModuleType:
    """A module in place of one of a framework, and of all that it is in."""
    for part in range(1, name.count(".") + 1):
        outer = ".".join(name.split(".")[:part])
        if outer not in sys.modules:
            monkeypatch.setitem(sys.modules, outer, types.ModuleType(outer))
    made = types.ModuleType(name)
    made.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, made)
    outer, _, last = name.rpartition(".")
    if outer:
        monkeypatch.setattr(sys.modules[outer], last, made, raising=False)
    return made


def test_flashinfers_communication_brings_rows_there_and_back(monkeypatch: pytest.MonkeyPatch, torch: types.ModuleType) -> None:
    class Base:
        def __init__(self, bootstrap: Any, params: Any) -> None:
            assert self.is_platform_supported()

    known: dict[str, type] = {}
    members = {
        "MoEEpCommunication": Base,
        "MoEEpCommParams": object,
        "MoEEpDispatchResult": types.SimpleNamespace,
        "register_communication": lambda name: lambda cls: known.setdefault(name, cls),
    }
    stand_in(monkeypatch, "flashinfer.moe_ep", **members)
    monkeypatch.delitem(sys.modules, "peerwarp.flashinfer", raising=False)
    import peerwarp.flashinfer as adapter

    monkeypatch.delitem(sys.modules, "peerwarp.flashinfer")
    operation, asked = Operation(), []
    monkeypatch.setattr(adapter, "operation", lambda group, **sizes: asked.append((group, sizes)) or operation)
    monkeypatch.setattr(peerwarp._core, "why_no_gpu", lambda: None)

    def made(form: str | None, dtype: str = "torch.bfloat16") -> Any:
        dispatch_format = None if form is None else types.SimpleNamespace(name=form)
        sizes = {"hidden_size": 8, "num_experts": 4, "top_k": 2, "max_tokens_per_rank": 4, "invalid_expert_id": 9}
        params = types.SimpleNamespace(dispatch_format=dispatch_format, token_dtype=dtype, **sizes)
        return known["peerwarp"](types.SimpleNamespace(process_group="group"), params)

    formats = {"FP16": "fp16", "BF16": "bf16", "FP8PerTensor": "fp8-tensor", "MXFP8": "mxfp8", "NVFP4": "nvfp4", "MXFP4": "mxfp4"}
    for form, rows in {None: "fp16", **formats, "DeepSeekFp8": "fp8"}.items():
        communication = made(form, "torch.float16" if rows == "fp16" else "torch.bfloat16")
        sizes = {"hidden": 8, "experts": 4, "topk": 2, "max_tokens": 4, "dtype": rows, "empty_id": 9}
        assert asked[-1] == ("group", sizes)
    with pytest.raises(peerwarp.InvalidArgument, match="MXINT4"):
        made("MXINT4")
    with pytest.raises(peerwarp.InvalidArgument, match=r"torch\.bfloat16, as which rows of NVFP4 come back"):
        made("NVFP4", "torch.float16")
    with pytest.raises(peerwarp.InvalidArgument, match=r"torch\.float32"):
        made(None, "torch.float32")
    x, scales = Rows(3, 8, dtype="torch.float8_e4m3fn"), Rows(3, 1, dtype="torch.float32")
    result = communication.dispatch(x, Rows(3, 2, dtype="torch.int64"), None, hidden_states_scale=scales, max_tokens_per_rank=3)
    name, sent, ids, weights, sent_scales, most = operation.calls[-1]
    assert (name, sent, ids.dtype, weights.shape, sent_scales, most) == ("dispatch", x, "torch.int32", (3, 2), scales, 3)
    assert (result.hidden_states, result.topk_ids) == (operation.d.rows, operation.d.ids)
    assert (result.tokens_per_rank, result.topk_weights, result.hidden_states_scale) == (4, None, operation.d.scales)
    # What came as bytes is of the types that were sent.
    assert (adapter._as(Rows(8, 8, dtype="torch.uint8"), x).dtype, result.hidden_states.dtype) == ("torch.float8_e4m3fn",) * 2
    with pytest.raises(peerwarp.PeerwarpError, match="before the combine"):
        communication.dispatch(x, Rows(3, 2))
    out = Rows(3, 8)
    assert communication.combine(Rows(2, 4, 8), output=out) is out
    assert operation.calls[-1] == ("combine", operation.d, (8, 8), out)
    with pytest.raises(peerwarp.PeerwarpError, match="without a dispatch"):
        communication.combine(Rows(8, 8))
    weights = Rows(3, 2, dtype="torch.float32")
    assert communication.dispatch(x, Rows(3, 2, dtype="torch.int32"), weights).topk_weights is operation.d.sent_weights
    communication.combine(Rows(8, 8))
    with pytest.raises(peerwarp.InvalidArgument, match="eplb"):
        communication.dispatch(x, Rows(3, 2), weights, eplb_local_stats=weights)
    communication.destroy()
    communication.destroy()


def test_sglangs_dispatcher_gets_our_rows_and_all_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = types.SimpleNamespace(name="BF16")
    before = {"MoeAlltoAll": "theirs", "moe_a2a_get_workspace_size_per_rank": "theirs"}
    name = f"{SGLANG_MOE}.token_dispatcher.flashinfer"
    theirs = stand_in(monkeypatch, name, get_flashinfer_a2a_dispatch_type=lambda: kind, **before)
    registered: list[tuple[Any, ...]] = []
    registry = types.SimpleNamespace(register=lambda *what: registered.append(what))
    kinds = types.SimpleNamespace(AROUND="around")
    stand_in(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=kinds)
    monkeypatch.setenv(sglang.VARIABLE, "1")
    sglang.register()
    hooks = {target.rpartition(".")[2]: hook for target, hook, how in registered if how == "around"}
    assert [target for target, _, _ in registered] == [f"{sglang.DISPATCHER}.__init__", f"{sglang.DISPATCHER}.dispatch"]
    operation, asked = Operation(), []
    monkeypatch.setattr(sglang, "operation", lambda group, **sizes: asked.append((group, sizes)) or operation)

    class Dispatcher:
        def init(self, group: object, topk: int, experts: int, own: int, hidden: int, params: object = None) -> None:
            self.ep_size, self.invalid_token_expert_id = 2, experts
            size = theirs.moe_a2a_get_workspace_size_per_rank(ep_size=2) + 128
            sizes = {"max_num_tokens": 16, "top_k": topk, "num_experts": experts, "workspace_size_per_rank": size}
            self.moe_a2a = theirs.MoeAlltoAll(mapping=None, mnnvl_config=None, **sizes)

        def dispatch(self, x: Rows) -> Any:
            self.active_moe_a2a, self.runtime_max_tokens_per_rank = self.moe_a2a, 3
            ids = Rows(3, 2, dtype="torch.int32")
            return self.active_moe_a2a.dispatch(ids, [x, ids, Rows(3, 2)], 3, invalid_token_expert_id=4, expert_id_payload_index=1)

    one = Dispatcher()
    hooks["__init__"](Dispatcher.init, one, "group", 2, 4, hidden_size=8, num_local_experts=2, params="bf16")
    sizes = {"hidden": 8, "experts": 4, "topk": 2, "max_tokens": 16, "dtype": "bf16", "empty_id": 4, "memory": 128}
    assert asked == [("group", sizes)]
    assert {name: getattr(theirs, name) for name in before} == before
    x = Rows(3, 8)
    received = hooks["dispatch"](Dispatcher.dispatch, one, x)
    assert [rows.shape for rows in received] == [(2, 4, 8), (2, 4, 2), (2, 4, 2)]
    assert (operation.calls[-1][1], operation.calls[-1][-1]) == (x, 3)
    # From here on its geometry is that of what there is room for.
    assert one.runtime_max_tokens_per_rank == 4
    y = one.moe_a2a.get_combine_payload_tensor_in_workspace(4, 8, "torch.bfloat16")
    assert y.shape == (2, 4, 8)
    one.moe_a2a.combine(y, 4, payload_in_workspace=True)
    assert operation.calls[-1][:3] == ("combine", operation.d, (8, 8))
    with pytest.raises(peerwarp.PeerwarpError, match="no dispatch"):
        one.moe_a2a.combine(y, 4)
    kind.name = "NVFP4"
    with pytest.raises(peerwarp.InvalidArgument, match="NVFP4"):
        hooks["__init__"](Dispatcher.init, one, "group", 2, 4, 2, 8)


class Vllm:
    """vLLM's modules, with two ranks, of which this is the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] | None = [3, 1]
        fell_back = self.fell_back = []  # type: list[tuple[Any, ...]]

        class Own:
            def __init__(self, is_sequence_parallel: bool = False, num_dispatchers: int = 1) -> None:
                self.given, self._lora_context = (is_sequence_parallel, num_dispatchers), None

            def prepare(self, *given: Any) -> str:
                fell_back.append(("prepare", *given))
                return "theirs"

            def finalize(self, *given: Any) -> None:
                fell_back.append(("finalize", *given))

            def allocate_fused_expert_output(self, *given: Any) -> str:
                return "theirs"

        class Reduce:
            def apply(self, *, output: None, fused_expert_output: Rows, **others: Any) -> Rows:
                return fused_expert_output

        class Delegate:
            pass

        self.own, self.delegate = Own, Delegate
        metadata = types.SimpleNamespace(get_chunk_sizes_across_dp_rank=lambda: self.sizes)
        group = types.SimpleNamespace(world_size=2, rank_in_group=0, cpu_group="group")
        config = types.SimpleNamespace(scheduler_config=types.SimpleNamespace(max_num_batched_tokens=16))
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        stand_in(monkeypatch, "vllm.config", get_current_vllm_config=lambda: config)
        stand_in(monkeypatch, "vllm.distributed", get_ep_group=lambda: group)
        context = types.SimpleNamespace(dp_metadata=metadata)
        stand_in(monkeypatch, "vllm.forward_context", get_forward_context=lambda: context)
        reduce = {"TopKWeightAndReduceContiguous": Reduce, "TopKWeightAndReduceDelegate": Delegate}
        stand_in(monkeypatch, f"{FUSED_MOE}.topk_weight_and_reduce", **reduce)
        quantized = Rows(3, 8, dtype="torch.float8_e4m3fn"), Rows(3, 1, dtype="torch.float32")
        stand_in(monkeypatch, f"{FUSED_MOE}.utils", moe_kernel_quantize_input=lambda *given: quantized)
        stand_in(monkeypatch, f"{FUSED_MOE}.prepare_finalize.naive_dp_ep", MoEPrepareAndFinalizeNaiveDPEPModular=Own)
        make = lambda use_monolithic, is_sequence_parallel, num_dispatchers: "monolithic"  # noqa: E731
        self.utils = stand_in(monkeypatch, f"{FUSED_MOE}.all2all_utils", make_moe_prepare_and_finalize_naive_dp_ep=make)


class ExpertMap:
    """Which experts are this rank's."""

    def __init__(self, own: list[int]) -> None:
        self.own = own

    def __ge__(self, number: int) -> ExpertMap:
        return self

    def nonzero(self) -> ExpertMap:
        return self

    def flatten(self) -> ExpertMap:
        return self

    def tolist(self) -> list[int]:
        return self.own


def config(quant_dtype: str | None = None, block_shape: list[int] | None = None) -> Any:
    return types.SimpleNamespace(quant_dtype=quant_dtype, block_shape=block_shape, a1_scale=None, per_act_token_quant=False)


def test_vllms_layers_take_ours_where_they_can(monkeypatch: pytest.MonkeyPatch, torch: types.ModuleType) -> None:
    there, operation = Vllm(monkeypatch), Operation()
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(vllm, "operation", lambda group, **sizes: asked.append((group, sizes)) or operation)
    monkeypatch.setenv(vllm.VARIABLE, "1")
    vllm.register()
    make = there.utils.make_moe_prepare_and_finalize_naive_dp_ep
    assert make(use_monolithic=True, is_sequence_parallel=False, num_dispatchers=2) == "monolithic"
    layer = make(use_monolithic=False, is_sequence_parallel=True, num_dispatchers=2)
    assert isinstance(layer, there.own) and layer.given == (True, 2)
    x, weights, ids = Rows(3, 8), Rows(3, 2, dtype="torch.float32"), Rows(3, 2, dtype="torch.int64")

    def prepare(of: Any, quantized: Any, expert_map: Any = None, deferred: bool = False, x: Rows = x) -> Any:
        return of.prepare(x, weights, ids, 4, expert_map or ExpertMap([0, 1]), False, quantized, defer_input_quant=deferred)

    rows, scales, counts, got, got_weights = prepare(layer, config())
    sizes = {"hidden": 8, "experts": 4, "topk": 2, "max_tokens": 16, "dtype": "bf16"}
    assert asked == [("group", sizes)]
    # The step's most tokens, and an expert of the other rank as the empty id.
    assert (operation.calls[-1][1], operation.calls[-1][2].dtype, operation.calls[-1][-1]) == (x, "torch.int32", 3)
    assert (rows, scales, counts, got_weights) == (operation.d.rows, None, None, operation.d.sent_weights)
    assert got == (operation.d.ids, ("less", 0), 3)
    assert layer.allocate_fused_expert_output((8, 8), None, None, None) is None
    out = Rows(3, 8)
    layer.finalize(out, Rows(8, 8), got_weights, got, False, there.delegate())
    assert operation.calls[-1] == ("combine", operation.d, (8, 8), out)
    assert layer.allocate_fused_expert_output((8, 8), None, None, None) == "theirs"

    fp8 = config("torch.float8_e4m3fn", [128, 128])
    assert prepare(layer, fp8)[1] is operation.d.scales
    assert operation.calls[-1][1].dtype == "torch.float8_e4m3fn"
    prepare(layer, fp8, deferred=True)
    assert operation.calls[-1][1] is x
    assert not there.fell_back

    # All else is vLLM's, and so is its combine.
    for layer_of, arguments, sizes_now in (
        (make(False), {"quantized": config("torch.float8_e4m3fn")}, [3, 1]),
        (make(False), {"quantized": config("nvfp4")}, [3, 1]),
        (make(False), {"quantized": fp8, "x": Rows(3, 8, dtype="torch.float16")}, [3, 1]),
        (make(False), {"quantized": config(), "x": Rows(3, 8, dtype="torch.float32")}, [3, 1]),
        (make(False), {"quantized": config(), "expert_map": ExpertMap([0, 2])}, [3, 1]),
        (make(False), {"quantized": config()}, [3]),
        (make(False), {"quantized": config()}, [17, 1]),
        (make(False), {"quantized": config()}, None),
    ):
        there.sizes = sizes_now
        assert prepare(layer_of, **arguments) == "theirs", arguments
        layer_of.finalize(*range(6))
        assert [call[0] for call in there.fell_back[-2:]] == ["prepare", "finalize"]
    assert there.fell_back[-1][1:] == tuple(range(6))

    def no_world(group: object, **sizes: Any) -> None:
        raise peerwarp.NoDriver("no GPU")

    there.sizes = [3, 1]
    monkeypatch.setattr(vllm, "operation", no_world)
    assert prepare(make(False), config()) == "theirs"


def test_layers_of_one_shape_share_an_operation_and_groups_have_one_world(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[object] = []
    monkeypatch.setattr(_adapters.World, "from_torch", lambda group: worlds.append(group) or group)
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(_adapters, "MoeAllToAll", lambda world, **sizes: made.append({"world": world, **sizes}) or len(made))
    monkeypatch.setattr(_adapters, "_worlds", {})
    monkeypatch.setattr(_adapters, "_operations", {})
    sizes = {"hidden": 8, "experts": 4, "topk": 2, "max_tokens": 100, "dtype": "bf16"}
    assert [_adapters.operation("a", **sizes), _adapters.operation("a", **sizes)] == [1, 1]
    assert _adapters.operation("a", **sizes, memory=1) == 2
    assert _adapters.operation("b", **sizes) == 3
    assert worlds == ["a", "b"]
    assert made[0] == {"world": "a", **sizes, "capacities": [8, 64], "empty_id": -1}


def test_a_signature_that_differs_is_seen() -> None:
    function = lambda text: Signature(ast.parse(text).body[0])  # noqa: E731
    own = function("def f(self, a, b, *, c=None): pass")
    own.takes(function("def f(self, a, b, *, c=None): pass"))
    for other in ("def f(self, b, a): pass", "def f(self, a): pass", "def f(self, a, b=1): pass", "def f(self, a, b, *, d): pass"):
        with pytest.raises(AssertionError):
            own.takes(function(other))
    call = lambda text: ast.parse(text, mode="eval").body  # noqa: E731
    own.takes_call(call("f(1, b=2)"))
    for wrong in ("f(1)", "f(1, 2, 3)", "f(1, 2, d=3)", "f(1, a=1)"):
        with pytest.raises(AssertionError):
            own.takes_call(call(wrong))
    with pytest.raises(AssertionError, match="there is no g"):
        sources.found(ast.parse("def f(): pass"), "g")
