"""Answers with calls as vendors have published them, in each format."""

from __future__ import annotations

from router.api.generation.output.call_formats import ToolFormat

BERN = {"city": "Bern", "days": 3}
TWO = [("weather", BERN), ("f", {})]
PUBLISHED: dict[ToolFormat, str] = {
    ToolFormat.HERMES: (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ),
    ToolFormat.QWEN3_CODER: (
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
    ),
    ToolFormat.SEED_OSS: (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"
        "<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>"
    ),
    ToolFormat.GLM: (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>f\n</tool_call>"
    ),
    ToolFormat.MINIMAX_M2: (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Bern</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="f">\n</invoke>\n</minimax:tool_call>'
    ),
    ToolFormat.KIMI_K2: (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Bern", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.f:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    ToolFormat.DEEPSEEK_V3: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Bern", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    ToolFormat.DEEPSEEK_V31: (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Bern", "days": 3}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    ToolFormat.GRANITE: (
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern", "days": 3}},'
        ' {"name": "f", "arguments": {}}]'
    ),
    ToolFormat.PHI4_MINI: (
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern", "days": 3}},'
        ' {"name": "f", "arguments": {}}]<|/tool_call|>'
    ),
    ToolFormat.HUNYUAN: (
        '<tool_calls>[{"name": "weather", "arguments": {"city": "Bern", "days": 3}},\n'
        '{"name": "f", "arguments": {}}]</tool_calls>'
    ),
    ToolFormat.HUNYUAN3: (
        "<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>f<tool_sep>\n</tool_call>\n</tool_calls>"
    ),
    ToolFormat.LONGCAT: (
        '<longcat_tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 3}}\n'
        '</longcat_tool_call>\n<longcat_tool_call>\n{"name": "f", "arguments": {}}\n</longcat_tool_call>'
    ),
    ToolFormat.LONGCAT_TAGS: (
        "<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Bern</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>\n"
        "<longcat_tool_call>f\n</longcat_tool_call>"
    ),
    ToolFormat.COHERE: (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Bern",'
        ' "days": 3}},\n    {"tool_call_id": "1", "tool_name": "f", "parameters": {}}\n]<|END_ACTION|>'
    ),
    ToolFormat.APERTUS: (
        '<|tools_prefix|>[{"weather": {"city": "Bern", "days": 3}}, {"f": {}}]<|tools_suffix|>'
    ),
    ToolFormat.PYTHONIC: '[weather(city="Bern", days=3), f()]',
    ToolFormat.LLAMA4_PYTHONIC: "<|python_start|>[weather(city='Bern', days=3), f()]<|python_end|>",
    ToolFormat.OLMO3: '<function_calls>\nweather(city="Bern", days=3)\nf()\n</function_calls>',
    ToolFormat.LFM2: '<|tool_call_start|>[weather(city="Bern", days=3), f()]<|tool_call_end|>',
    ToolFormat.FUNCTION_GEMMA: (
        "<start_function_call>call:weather{city:<escape>Bern<escape>,days:3}<end_function_call>"
        "<start_function_call>call:f{}<end_function_call>"
    ),
    ToolFormat.GEMMA4: (
        '<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:3}<tool_call|><|tool_call>call:f{}<tool_call|>'
    ),
    ToolFormat.LLAMA_JSON: (
        '{"name": "weather", "parameters": {"city": "Bern", "days": 3}}; {"name": "f", "parameters": {}}'
    ),
    ToolFormat.MISTRAL: '[TOOL_CALLS]weather[ARGS]{"city": "Bern", "days": 3}[TOOL_CALLS]f[ARGS]{}',
}
